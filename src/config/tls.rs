//! Directives of TLS: protocols and ciphers by OpenSSL's names, and what the server reads of them.
//!
//! | directive | takes |
//! |---|---|
//! | `tls-protocols` | `TLSv1.2`, `TLSv1.3`, in any case; empty is both |
//! | `tls-ciphers` | ciphers of TLS 1.2, separated by colons; `DEFAULT`, `ALL`, `HIGH` are all there are, `!name` or `-name` leaves one out |
//! | `tls-ciphersuites` | those of TLS 1.3; empty is all |
//!
//! What this server does not have is refused by its name, and never left out in silence.

use std::path::PathBuf;
use std::time::Duration;

use super::value::{Reason, Words};

/// A cipher of TLS 1.2 or 1.3, by OpenSSL's name.
pub type CipherName = &'static str;

/// Of TLS 1.2, as OpenSSL calls them.
pub const CIPHERS_12: [CipherName; 6] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
];
/// Of TLS 1.3.
pub const CIPHERS_13: [CipherName; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// OpenSSL's words for all there are, and for classes of ciphers of which there is none.
const ALL: [&str; 3] = ["DEFAULT", "ALL", "HIGH"];
const NONE: [&str; 18] = [
    "MEDIUM", "LOW", "EXPORT", "EXP", "NULL", "eNULL", "aNULL", "MD5", "RC4", "DES", "3DES", "PSK", "SRP", "DSS",
    "CAMELLIA", "ARIA", "SEED", "kRSA",
];

/// Who must show a certificate: values of `tls-auth-clients`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthClients {
    /// Nobody, and none is looked at.
    No,
    /// Everybody.
    Yes,
    /// Nobody, but one that is shown must be good.
    Optional,
}

/// What the directives say about TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// TCP port, or 0.
    pub port: u16,
    /// The server's certificate and those between it and the authority, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    pub key_file: Option<PathBuf>,
    /// Certificates of authorities, PEM.
    pub ca_cert_file: Option<PathBuf>,
    /// A directory of such files.
    pub ca_cert_dir: Option<PathBuf>,
    /// Who must show a certificate.
    pub auth_clients: AuthClients,
    /// TLS 1.2 and TLS 1.3.
    pub protocols: [bool; 2],
    /// The ciphers, best first.
    pub ciphers: Vec<CipherName>,
    /// The server's order of ciphers counts, not the client's.
    pub prefer_server_ciphers: bool,
    /// Sessions that are kept to be taken up again, and for how long.
    pub sessions: Option<(usize, Duration)>,
    /// Time that a handshake may take.
    pub handshake_timeout: Duration,
    /// Handshakes under way at the same time.
    pub max_handshakes: usize,
}

/// `tls-protocols`.
pub(super) fn protocols(words: &Words<'_>) -> Result<Vec<u8>, Reason> {
    read_protocols(&words.args.join(&b' '))?;
    Ok(words.args.join(&b' '))
}

/// Which of TLS 1.2 and 1.3 a text names.
pub(super) fn read_protocols(text: &[u8]) -> Result<[bool; 2], Reason> {
    let mut chosen = [false; 2];
    for word in text.split(|&c| c == b' ').filter(|word| !word.is_empty()) {
        match word.to_ascii_lowercase().as_slice() {
            b"tlsv1.2" => chosen[0] = true,
            b"tlsv1.3" => chosen[1] = true,
            b"tlsv1" | b"tlsv1.1" => return Err("TLSv1 and TLSv1.1 are not supported, as they are not safe".into()),
            _ => return Err("Invalid tls-protocols specified. Use a combination of 'TLSv1.2' and 'TLSv1.3'.".into()),
        }
    }
    Ok(if chosen == [false; 2] { [true; 2] } else { chosen })
}

/// `tls-ciphers`.
pub(super) fn ciphers(arg: &[u8]) -> Result<Vec<u8>, Reason> {
    read_ciphers(arg).map(|_| arg.to_vec())
}

/// `tls-ciphersuites`.
pub(super) fn cipher_suites(arg: &[u8]) -> Result<Vec<u8>, Reason> {
    read_cipher_suites(arg).map(|_| arg.to_vec())
}

fn unknown(name: &str, known: &[CipherName]) -> Reason {
    let name: String = name.chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    format!("the cipher '{name}' is not supported; there are {}", known.join(", ")).into()
}

fn words(text: &[u8]) -> Result<Vec<&str>, Reason> {
    let text = std::str::from_utf8(text).map_err(|_| "the list of ciphers is no text")?;
    Ok(text.split([':', ',', ' ']).filter(|word| !word.is_empty()).collect())
}

/// The ciphers of TLS 1.2 that OpenSSL's list names, in its order.
pub(super) fn read_ciphers(text: &[u8]) -> Result<Vec<CipherName>, Reason> {
    let known = |name: &str| CIPHERS_12.iter().copied().find(|known| *known == name);
    let words = words(text)?;
    if words.is_empty() {
        return Ok(CIPHERS_12.to_vec());
    }
    let (mut chosen, mut barred) = (Vec::new(), Vec::new());
    for word in words {
        let left_out = word.strip_prefix(['!', '-']);
        let name = left_out.unwrap_or(word);
        match (known(name), left_out) {
            (Some(cipher), None) => chosen.push(cipher),
            (Some(cipher), Some(_)) => barred.push(cipher),
            (None, None) if ALL.contains(&name) => chosen.extend(CIPHERS_12),
            (None, Some(_)) if NONE.contains(&name) => {}
            _ => return Err(unknown(name, &CIPHERS_12)),
        }
    }
    let mut all = Vec::new();
    for cipher in chosen.into_iter().filter(|cipher| !barred.contains(cipher)) {
        if !all.contains(&cipher) {
            all.push(cipher);
        }
    }
    if all.is_empty() { Err("no cipher is left".into()) } else { Ok(all) }
}

/// The ciphers of TLS 1.3 that a list names, in its order.
pub(super) fn read_cipher_suites(text: &[u8]) -> Result<Vec<CipherName>, Reason> {
    let words = words(text)?;
    if words.is_empty() {
        return Ok(CIPHERS_13.to_vec());
    }
    let mut all = Vec::new();
    for word in words {
        let cipher =
            CIPHERS_13.iter().copied().find(|known| *known == word).ok_or_else(|| unknown(word, &CIPHERS_13))?;
        if !all.contains(&cipher) {
            all.push(cipher);
        }
    }
    Ok(all)
}

/// `tls-key-file-pass` and its kin.
pub(super) fn no_key_password(arg: &[u8]) -> Result<Vec<u8>, Reason> {
    none(arg, "private keys with a password are not supported: keep the key without one, readable by the server alone")
}

/// `tls-dh-params-file`.
pub(super) fn no_dh_params(arg: &[u8]) -> Result<Vec<u8>, Reason> {
    none(arg, "key exchange is by elliptic curves: there is no use for Diffie-Hellman parameters")
}

fn none(arg: &[u8], why: &'static str) -> Result<Vec<u8>, Reason> {
    if arg.is_empty() { Ok(Vec::new()) } else { Err(why.into()) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn protocols_that_are_there() {
        assert_eq!(read_protocols(b"").unwrap(), [true, true]);
        assert_eq!(read_protocols(b"TLSv1.2 tlsV1.3").unwrap(), [true, true]);
        assert_eq!(read_protocols(b"TLSv1.3").unwrap(), [false, true]);
        assert!(read_protocols(b"TLSv1.1 TLSv1.2").unwrap_err().contains("not safe"));
        assert!(read_protocols(b"SSLv3").unwrap_err().starts_with("Invalid tls-protocols"));
    }

    #[test]
    fn ciphers_by_their_names() {
        assert_eq!(read_ciphers(b"").unwrap(), CIPHERS_12);
        assert_eq!(read_ciphers(b"DEFAULT:!MEDIUM").unwrap(), CIPHERS_12);
        let two = "ECDHE-RSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-GCM-SHA256";
        assert_eq!(read_ciphers(two.as_bytes()).unwrap().join(":"), two);
        assert_eq!(read_ciphers(b"ALL:!ECDHE-RSA-CHACHA20-POLY1305").unwrap().len(), CIPHERS_12.len() - 1);
        // Left out in silence they would be offered all the same, or what was asked for would not be.
        for refused in ["DEFAULT:!AESGCM", "AES128-SHA", "DEFAULT:MEDIUM", "ECDHE+AESGCM", "@STRENGTH"] {
            assert!(read_ciphers(refused.as_bytes()).unwrap_err().contains("is not supported"), "{refused}");
        }
        let all_out = CIPHERS_12.map(|name| format!("!{name}")).join(":");
        assert_eq!(read_ciphers(format!("ALL:{all_out}").as_bytes()).unwrap_err(), "no cipher is left");
        assert_eq!(read_cipher_suites(b"TLS_AES_256_GCM_SHA384").unwrap(), ["TLS_AES_256_GCM_SHA384"]);
        assert!(read_cipher_suites(b"TLS_AES_128_CCM_SHA256").unwrap_err().contains("TLS_AES_128_CCM_SHA256"));
    }
}
