//! How a page is made smaller.

use crate::device::memory::PAGE;
use core::fmt;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

/// Bytes that a codec may write while it compresses a page: what the worst page comes to, and some room.
pub const CODEC_OUTPUT: usize = 4608;

/// What was compressed cannot be what this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the compressed page is damaged")]
pub struct Damaged;

/// A way to compress pages. Its methods are called with a pin: they neither sleep nor take long.
pub trait Codec: Send + Sync + 'static {
    /// What one CPU works with. It lies in the machine's memory, and is at most as large and as aligned as a
    /// page or a few.
    type Workspace: Send;

    /// Its name, as Linux has it.
    const NAME: &'static str;

    /// A workspace, or none if there is no memory.
    fn workspace(&self) -> Option<Self::Workspace>;

    /// Writes the compressed page to `output` and returns its length; none if there is no room for it.
    fn compress(
        &self,
        workspace: &mut Self::Workspace,
        page: &[u8; PAGE],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize>;

    /// The opposite.
    ///
    /// # Errors
    ///
    /// [`Damaged`] if `compressed` is not what [`compress`](Self::compress) wrote, as far as the codec can
    /// tell. Then the page has whatever contents. It reads and writes nothing else in any case.
    fn decompress(
        &self,
        workspace: &mut Self::Workspace,
        compressed: &[u8],
        page: &mut [u8; PAGE],
    ) -> Result<(), Damaged>;
}

/// LZ4, in Rust without unsafe code: damaged input does no harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lz4;

/// What [`Lz4`] works with: its table of what it has seen.
pub struct Lz4Workspace(CompressTable);

impl fmt::Debug for Lz4Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lz4Workspace").finish_non_exhaustive()
    }
}

const _: () = assert!(get_maximum_output_size(PAGE) <= CODEC_OUTPUT);

impl Codec for Lz4 {
    type Workspace = Lz4Workspace;

    const NAME: &'static str = "lz4";

    #[inline]
    fn workspace(&self) -> Option<Lz4Workspace> {
        Some(Lz4Workspace(CompressTable::small()))
    }

    fn compress(
        &self,
        workspace: &mut Lz4Workspace,
        page: &[u8; PAGE],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize> {
        compress_into_with_table(page, output, &mut workspace.0).ok()
    }

    fn decompress(
        &self,
        _workspace: &mut Lz4Workspace,
        compressed: &[u8],
        page: &mut [u8; PAGE],
    ) -> Result<(), Damaged> {
        match decompress_into(compressed, page) {
            Ok(PAGE) => Ok(()),
            Ok(_) | Err(_) => Err(Damaged),
        }
    }
}
