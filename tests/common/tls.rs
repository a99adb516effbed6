//! TLS in tests: the certificates of tests/data/tls, and a blocking client.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use super::resp::{Value, decode, encode};

/// A file of tests/data/tls.
pub(crate) fn file(name: &str) -> String {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tls")).join(name).display().to_string()
}

fn certificates(name: &str) -> Vec<CertificateDer<'static>> {
    let certificates = CertificateDer::pem_file_iter(file(name)).expect("a file of certificates");
    certificates.collect::<Result<_, _>>().expect("certificates")
}

/// What a client brings to a handshake.
pub(crate) struct Client<'a> {
    /// Certificate and key, by the names of their files.
    pub(crate) identity: Option<(&'a str, &'a str)>,
    pub(crate) versions: &'a [&'static SupportedProtocolVersion],
    /// How earlier sessions are remembered.
    pub(crate) resumption: Resumption,
}

impl Client<'_> {
    /// One with a good certificate.
    pub(crate) fn known() -> Client<'static> {
        Client { identity: Some(("client.crt", "client.key")), ..Client::unknown() }
    }

    /// One without a certificate.
    pub(crate) fn unknown() -> Client<'static> {
        Client { identity: None, versions: rustls::ALL_VERSIONS, resumption: Resumption::disabled() }
    }

    pub(crate) fn config(self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        certificates("ca.crt").into_iter().for_each(|certificate| roots.add(certificate).expect("an authority"));
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
            .with_protocol_versions(self.versions)
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match self.identity {
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_file(file(key)).expect("a key");
                builder.with_client_auth_cert(certificates(certificate), key).expect("a certificate and its key")
            }
            None => builder.with_no_client_auth(),
        };
        config.resumption = self.resumption;
        Arc::new(config)
    }
}

/// A blocking connection.
pub(crate) struct Peer {
    pub(crate) stream: StreamOwned<ClientConnection, TcpStream>,
    buf: Vec<u8>,
}

impl Peer {
    /// Connects; the handshake ends with the first bytes that are read.
    pub(crate) fn connect(port: u16, config: Arc<ClientConfig>) -> io::Result<Peer> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(30)))?;
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(config, name).expect("a client");
        Ok(Peer { stream: StreamOwned::new(session, socket), buf: Vec::new() })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next reply.
    pub(crate) fn read(&mut self) -> io::Result<Value> {
        loop {
            if !self.buf.is_empty()
                && let Some((value, used)) = decode(&self.buf).map_err(io::Error::other)?
            {
                self.buf.drain(..used);
                return Ok(value);
            }
            let mut part = [0; 1 << 16];
            match self.stream.read(&mut part)? {
                0 => return Err(io::ErrorKind::ConnectionAborted.into()),
                n => self.buf.extend_from_slice(&part[..n]),
            }
        }
    }

    pub(crate) fn try_call(&mut self, args: &[&str]) -> io::Result<Value> {
        self.send(&encode(args))?;
        self.read()
    }

    pub(crate) fn call(&mut self, line: &str) -> Value {
        let args: Vec<&str> = line.split(' ').collect();
        self.try_call(&args).unwrap_or_else(|e| panic!("{line}: {e}"))
    }
}
