//! The list of large folios that wait to be split.

use quire_arch::Pfn;

/// The list of folios some of whose pages are no longer mapped (`deferred.rs`).
#[derive(Debug, Default)]
pub(crate) struct DeferredSplits {
    pub(crate) first: Option<Pfn>,
    pub(crate) last: Option<Pfn>,
    pub(crate) folios: u64,
}
