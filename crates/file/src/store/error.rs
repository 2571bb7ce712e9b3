//! What keeps an entry out of a store.

use crate::entry::Stored;
use crate::source::Needs;

/// Why nothing was inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InsertError {
    /// A folio or a swap slot is there.
    #[error("page {:#x} of the file has an entry already", .0.start.get())]
    Occupied(Stored),
    /// The reserve has too few nodes: it is to be filled without the lock, and the insertion made again.
    #[error("the reserve has not enough nodes")]
    NeedsNodes(Needs),
    /// The number of its last frame or slot does not fit into a word.
    #[error("an entry has a frame or a slot of more than {} bits", crate::Payload::BITS)]
    TooLarge,
    /// The first page is not a multiple of the order's pages.
    #[error("an entry is not aligned to its order")]
    Misaligned,
}
