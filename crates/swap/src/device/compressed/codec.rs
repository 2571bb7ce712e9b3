//! What a codec is that compresses pages.

use crate::device::memory::PAGE;
use core::mem::MaybeUninit;

/// Bytes that a codec may write while it compresses a page: the worst case, and some margin.
pub const CODEC_OUTPUT: usize = 4608;

/// The data is not valid compressed data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the compressed page is damaged")]
pub struct Damaged;

/// A way to compress pages. Its methods are called with a pin: they neither sleep nor take long. A call of
/// the store that they work for fails.
pub trait Codec: Send + Sync + 'static {
    /// A CPU's workspace. It lies in the machine's memory; its size and alignment are at most a page or a
    /// few.
    type Workspace: Send;

    /// Its name, as Linux has it.
    const NAME: &'static str;

    /// Writes a workspace to `place`, where it stays: it may be larger than a kernel's stack. What is
    /// returned shows that it is there. `None`, and nothing is there, if there is no memory.
    fn init<'p>(&self, place: &'p mut MaybeUninit<Self::Workspace>) -> Option<&'p mut Self::Workspace>;

    /// Writes the compressed page to `output` and returns its length; `None` if it does not fit.
    fn compress(
        &self,
        workspace: &mut Self::Workspace,
        page: &[u8; PAGE],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize>;

    /// Decompresses a page.
    ///
    /// # Errors
    ///
    /// [`Damaged`] if `compressed` is not what [`compress`](Self::compress) wrote, as far as the codec can
    /// tell. Then the page's contents are unspecified. Nothing else is read or written in any case.
    fn decompress(
        &self,
        workspace: &mut Self::Workspace,
        compressed: &[u8],
        page: &mut [u8; PAGE],
    ) -> Result<(), Damaged>;
}
