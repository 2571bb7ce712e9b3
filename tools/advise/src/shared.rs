//! Which folios of shared memory may be large: the words that are tried, and the files that they are written
//! to.

use quire_arch::{Order, OrderSet};
use quire_mm::file::{ShmemEnabled, ShmemHuge};
use quire_mm::proc::HugeFile;

/// The files with their words, in an order in which they can be written: that of all sizes last, since with
/// `force` no other size inherits.
pub(crate) fn words(huge: ShmemHuge) -> impl Iterator<Item = (String, &'static str)> {
    let sizes =
        OrderSet::SHMEM.iter().map(move |order| (HugeFile::ShmemSize(order), huge.size(order).name()));
    let all = sizes.chain([(HugeFile::ShmemEnabled, huge.enabled().name())]);
    all.map(|(file, word)| (file.to_string(), word))
}

/// The settings that are tried beside what there is `now`, with their names.
pub(crate) fn others(now: ShmemHuge) -> impl Iterator<Item = (String, ShmemHuge)> {
    use ShmemEnabled::{Advise, Always, Never, WithinSize};
    let others = [Never, Advise, WithinSize, Always].into_iter().filter(move |word| *word != now.enabled());
    others.filter_map(move |word| Some((format!("shmem={}", word.name()), now.with_enabled(word).ok()?)))
}

/// Settings matter to a program that has so much shared memory: a large folio, or so many that it has a few
/// pages of.
const LEAST: u64 = Order::PMD.bytes();
const LEAST_IN_LARGE: u64 = 4 * Order::PMD.bytes();

/// Whether settings matter to a program that has so many bytes of it, and so many in large folios.
pub(crate) fn matters((bytes, in_large): (u64, u64)) -> bool {
    bytes >= LEAST || in_large >= LEAST_IN_LARGE
}
