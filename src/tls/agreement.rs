//! rustls's configuration, made of directives and the files that they name.
//!
//! The provider is graviola: no C, and the processor's own instructions for AES and elliptic curves, without which it cannot work.
//!
//! What goes wrong is told with the directive that it is about, in Redis's words where Redis has some.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CipherSuite, Error, InconsistentKeys, RootCertStore, ServerConfig};

use super::sessions::Sessions;
use crate::config::load::io_text;
use crate::config::tls::{AuthClients, CIPHERS_12, CIPHERS_13, Tls};

/// The directive that cannot be honoured, and why.
pub type Refusal = (&'static str, Cow<'static, str>);

/// Names of the directives that this module reads.
pub const DIRECTIVES: [&str; 12] = [
    "tls-cert-file",
    "tls-key-file",
    "tls-ca-cert-file",
    "tls-ca-cert-dir",
    "tls-auth-clients",
    "tls-protocols",
    "tls-ciphers",
    "tls-ciphersuites",
    "tls-prefer-server-ciphers",
    "tls-session-caching",
    "tls-session-cache-size",
    "tls-session-cache-timeout",
];

/// rustls's names of [`CIPHERS_12`] and [`CIPHERS_13`], in their order.
const SUITES_12: [CipherSuite; CIPHERS_12.len()] = [
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];
const SUITES_13: [CipherSuite; CIPHERS_13.len()] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn suite(name: &str) -> Option<CipherSuite> {
    CIPHERS_12
        .iter()
        .zip(SUITES_12)
        .chain(CIPHERS_13.iter().zip(SUITES_13))
        .find_map(|(known, suite)| (*known == name).then_some(suite))
}

/// Whether this processor has the instructions that the provider cannot do without.
fn processor_is_able() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        has!("aes") && has!("pclmulqdq") && has!("bmi1") && has!("adx") && has!("avx") && has!("avx2")
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected as has;
        has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
    }
}

/// What the directives ask for.
///
/// # Errors
/// What cannot be honoured.
pub fn make(tls: &Tls) -> Result<Arc<ServerConfig>, Refusal> {
    if !processor_is_able() {
        let why = "TLS needs a processor with AES, AVX2 and ADX instructions, or their like on aarch64";
        return Err(("tls-port", why.into()));
    }
    let mut provider = rustls_graviola::default_provider();
    let all = std::mem::take(&mut provider.cipher_suites);
    let wanted = tls.ciphers.iter().filter_map(|name| suite(name));
    provider.cipher_suites = wanted.filter_map(|suite| all.iter().find(|one| one.suite() == suite).copied()).collect();
    let provider = Arc::new(provider);
    let versions: Vec<_> = [&rustls::version::TLS12, &rustls::version::TLS13]
        .into_iter()
        .zip(tls.protocols)
        .filter_map(|(version, chosen)| chosen.then_some(version))
        .collect();
    let identity = identity(tls, &provider)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| ("tls-protocols", error.to_string().into()))?;
    let builder = match verifier(tls, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
    config.ignore_client_order = tls.prefer_server_ciphers;
    config.session_storage = match tls.sessions {
        Some((most, lifetime)) => Arc::new(Sessions::new(most, lifetime)),
        None => Arc::new(NoServerSessionStorage {}),
    };
    if tls.sessions.is_none() {
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// The server's certificate and key.
fn identity(tls: &Tls, provider: &rustls::crypto::CryptoProvider) -> Result<CertifiedKey, Refusal> {
    let Some(cert_file) = &tls.cert_file else { return Err(("tls-cert-file", "No tls-cert-file configured!".into())) };
    let Some(key_file) = &tls.key_file else { return Err(("tls-key-file", "No tls-key-file configured!".into())) };
    let chain = certificates("tls-cert-file", cert_file)?;
    if chain.is_empty() {
        return Err(("tls-cert-file", format!("{}: there is no certificate in it", cert_file.display()).into()));
    }
    let refused = |why: String| ("tls-key-file", Cow::from(format!("{}: {why}", key_file.display())));
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| refused(pem_error(&error)))?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| {
        refused("this kind of private key is not supported: it must be RSA, ECDSA on P-256 or P-384, or Ed25519".into())
    })?;
    if key.algorithm() == rustls::SignatureAlgorithm::ED25519 && !tls.protocols[1] {
        return Err(("tls-protocols", "an Ed25519 key needs TLSv1.3".into()));
    }
    let identity = CertifiedKey::new(chain, key);
    match identity.keys_match() {
        Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(refused("is not the key of tls-cert-file".into()))
        }
        // A certificate of an older form than rustls reads is the client's to judge.
        _ => Ok(identity),
    }
}

const NO_AUTHORITY: &str = "there is no certificate of an authority in it";

/// Who looks at clients' certificates.
fn verifier(
    tls: &Tls,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, Refusal> {
    if tls.auth_clients == AuthClients::No {
        // Nobody is judged by it, so that it may hold what rustls does not read; but it is to be what its directive says.
        if let Some(file) = &tls.ca_cert_file
            && certificates("tls-ca-cert-file", file)?.is_empty()
        {
            return Err(("tls-ca-cert-file", format!("{}: {NO_AUTHORITY}", file.display()).into()));
        }
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    let mut add = |directive, path: &Path| {
        for certificate in certificates(directive, path)? {
            let added = roots.add(certificate);
            added.map_err(|error| (directive, Cow::from(format!("{}: {error}", path.display()))))?;
        }
        Ok(())
    };
    if let Some(file) = &tls.ca_cert_file {
        add("tls-ca-cert-file", file)?;
    }
    if let Some(dir) = &tls.ca_cert_dir {
        let refused =
            |error: std::io::Error| ("tls-ca-cert-dir", Cow::from(format!("{}: {}", dir.display(), io_text(&error))));
        for entry in std::fs::read_dir(dir).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            if path.is_file() {
                add("tls-ca-cert-dir", &path)?;
            }
        }
    }
    if roots.is_empty() {
        let why = match (&tls.ca_cert_file, &tls.ca_cert_dir) {
            (None, None) => {
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-cluster, tls-replication or tls-auth-clients are enabled!"
            }
            _ => NO_AUTHORITY,
        };
        let directive = if tls.ca_cert_dir.is_some() { "tls-ca-cert-dir" } else { "tls-ca-cert-file" };
        return Err((directive, why.into()));
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = if tls.auth_clients == AuthClients::Optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map(Some).map_err(|error| ("tls-ca-cert-file", error.to_string().into()))
}

/// The certificates in a file; what else stands in it is passed over.
fn certificates(directive: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Refusal> {
    let refused = |error: rustls::pki_types::pem::Error| {
        (directive, Cow::from(format!("{}: {}", path.display(), pem_error(&error))))
    };
    CertificateDer::pem_file_iter(path).map_err(refused)?.collect::<Result<_, _>>().map_err(refused)
}

fn pem_error(error: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) => io_text(error),
        Error::NoItemsFound => "there is no private key in it that could be read without a password".into(),
        other => format!("is no PEM file: {other:?}"),
    }
}
