//! What the standard library leaves open about paths.

use std::path::Path;

/// The folder in which a name stands, as the system wants it named: that of a bare name is `.`, not the empty path.
/// The root stands in itself.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_in_a_folder() {
        for (path, folder) in [("name", "."), ("a/name", "a"), ("/name", "/"), ("/a/b/name", "/a/b"), ("/", "/")] {
            assert_eq!(folder_of(Path::new(path)), Path::new(folder), "{path}");
        }
    }
}
