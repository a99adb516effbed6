//! HTTP as little of it as is needed: one GET without a body, answered, and the connection is closed.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Bytes that the head of a request may have.
pub(super) const MOST_BYTES: usize = 8 << 10;
/// Lines that it may have.
const MOST_HEADERS: usize = 64;
/// Time for a request to come, and again for its response to leave.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// What the page may load and where it may be shown: itself, and nowhere else.
const PAGE_POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";

/// The head of a request.
#[derive(Debug)]
pub(super) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
}

/// A request that is none: its status and why.
type Bad = (u16, &'static str);

impl Request {
    /// Of these bytes; `None` if more of them are needed.
    fn parse(bytes: &[u8]) -> Result<Option<Request>, Bad> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        match head.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err((431, "Request Header Fields Too Large")),
            Err(_) => return Err((400, "Bad Request")),
        }
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        Ok(Some(Request {
            method: head.method.unwrap_or_default().to_owned(),
            target: head.path.unwrap_or_default().to_owned(),
            headers: head.headers.iter().map(|header| (header.name.to_ascii_lowercase(), text(header.value))).collect(),
        }))
    }

    /// Without what is asked behind it.
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The values of a header, by its name in lower case.
    pub(super) fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(one, _)| one == name).map(|(_, value)| value.trim())
    }
}

/// What is answered.
pub(super) struct Response {
    status: u16,
    reason: &'static str,
    kind: &'static str,
    extra: &'static str,
    body: Vec<u8>,
}

impl Response {
    pub(super) fn ok(kind: &'static str, body: String) -> Response {
        Response { status: 200, reason: "OK", kind, extra: "", body: body.into_bytes() }
    }

    pub(super) fn page(html: &str) -> Response {
        Response { extra: PAGE_POLICY, ..Response::ok("text/html; charset=utf-8", html.to_owned()) }
    }

    pub(super) fn text(status: u16, reason: &'static str, body: &str) -> Response {
        Response { status, reason, kind: "text/plain; charset=utf-8", extra: "", body: body.as_bytes().to_vec() }
    }

    pub(super) fn unauthorized() -> Response {
        let extra = "WWW-Authenticate: Basic realm=\"tarn\", charset=\"UTF-8\"\r\n";
        Response { extra, ..Response::text(401, "Unauthorized", "the default user's password is needed\n") }
    }

    pub(super) fn unavailable() -> Response {
        Response::text(503, "Service Unavailable", "the server is going down\n")
    }

    /// As it leaves; without its body for HEAD.
    fn into_bytes(self, with_body: bool) -> Vec<u8> {
        let Response { status, reason, kind, extra, body } = self;
        let mut bytes = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
            Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n{extra}\r\n",
            body.len()
        )
        .into_bytes();
        if with_body {
            bytes.extend(body);
        }
        bytes
    }
}

/// Serves one request.
pub(super) async fn serve<F>(mut stream: TcpStream, answer: impl FnOnce(Request) -> F) -> io::Result<()>
where
    F: Future<Output = Response>,
{
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let asked = tokio::time::timeout(LIMIT, read(&mut stream)).await.map_err(timed_out)??;
    let bytes = match asked {
        Err((status, reason)) => Response::text(status, reason, "").into_bytes(true),
        Ok(request) => match request.method.as_str() {
            "GET" => answer(request).await.into_bytes(true),
            "HEAD" => answer(request).await.into_bytes(false),
            _ => {
                let extra = "Allow: GET, HEAD\r\n";
                Response { extra, ..Response::text(405, "Method Not Allowed", "") }.into_bytes(true)
            }
        },
    };
    let sent = async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await?;
        // Closed with something unread the peer would not get what was written.
        let mut rest = [0; 1024];
        for _ in 0..16 {
            if stream.read(&mut rest).await? == 0 {
                break;
            }
        }
        Ok(())
    };
    tokio::time::timeout(LIMIT, sent).await.map_err(timed_out)?
}

async fn read(stream: &mut TcpStream) -> io::Result<Result<Request, Bad>> {
    let mut bytes = Vec::with_capacity(1 << 10);
    loop {
        let mut part = [0; 1 << 10];
        let read = stream.read(&mut part).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&part[..read]);
        match Request::parse(&bytes) {
            Ok(None) if bytes.len() < MOST_BYTES => {}
            Ok(None) => return Ok(Err((431, "Request Header Fields Too Large"))),
            Ok(Some(request)) => return Ok(Ok(request)),
            Err(bad) => return Ok(Err(bad)),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use super::*;

    pub(in crate::web) fn request(text: &str) -> Request {
        Request::parse(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn heads() {
        let one = request("GET /metrics?x=1 HTTP/1.1\r\nHost:  a \r\nHOST: b\r\n\r\n");
        assert_eq!((one.path(), one.header("host").collect::<Vec<_>>()), ("/metrics", vec!["a", "b"]));
        assert!(Request::parse(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap().is_none());
        for bad in ["*1\r\n$4\r\nPING\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /\0 HTTP/1.1\r\n\r\n", "\r\n:\r\n\r\n"] {
            assert_eq!(Request::parse(bad.as_bytes()).unwrap_err().0, 400, "{bad:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MOST_HEADERS + 1));
        assert_eq!(Request::parse(many.as_bytes()).unwrap_err().0, 431);
    }
}
