//! The certificates that a connection was made with, and what they are good for.
//!
//! That is found out for the first request and kept for the ones after it, until it may be otherwise: when one of those that
//! count begins or ends, or when others vouch for clients. Whoever keeps a connection open is not believed for longer than
//! who makes a new one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls_pki_types::CertificateDer;

use crate::request::User;

/// What a connection's certificates are good for.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// The user that the certificate names.
    pub user: Option<User>,
    /// The other side may name users in headers.
    pub is_proxy: bool,
    /// There is a certificate that none of those says anything for who are asked.
    pub is_strange: bool,
    /// Until when its own certificate is good, in seconds since 1970; None where that is a proxy's or there is none.
    pub until: Option<i64>,
}

/// What a client has shown and holds the key of; nothing, most often.
#[derive(Debug, Default)]
pub struct Certificates {
    /// Its own, then those that vouch for it.
    chain: Vec<CertificateDer<'static>>,
    found: ArcSwapOption<Found>,
}

/// What was found out, and for how long it is so.
#[derive(Debug)]
struct Found {
    shown: Arc<Shown>,
    /// Of those who vouch for clients.
    generation: u64,
    /// Seconds since 1970.
    until: i64,
}

impl Certificates {
    pub fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Certificates { chain, found: ArcSwapOption::empty() }
    }

    /// What they are good for; `judge` finds that out and until when it is so.
    pub(super) fn shown(
        &self,
        generation: u64,
        now: i64,
        judge: impl FnOnce(&[CertificateDer<'static>]) -> (Shown, i64),
    ) -> Arc<Shown> {
        if let Some(found) = &*self.found.load()
            && found.generation == generation
            && now < found.until
        {
            return found.shown.clone();
        }
        let (shown, until) = judge(&self.chain);
        let shown = Arc::new(shown);
        self.found.store(Some(Arc::new(Found { shown: shown.clone(), generation, until })));
        shown
    }
}
