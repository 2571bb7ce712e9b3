//! A codec that compresses better than lz4 and takes longer: zstd.

use quire_arch::PAGE_SIZE;
use quire_swap::{CODEC_OUTPUT, Codec, Damaged};
use std::fmt;
use std::mem::MaybeUninit;
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

/// zstd. Its contexts lie in the host's memory, one for each CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zstd {
    level: i32,
}

impl Zstd {
    /// The codec at `level`: 1 is the fastest, 3 what Linux's zram uses; levels past 19 count as 19.
    pub fn new(level: i32) -> Self {
        Self { level: level.min(19) }
    }
}

impl Default for Zstd {
    fn default() -> Self {
        Self::new(3)
    }
}

/// A CPU's workspace.
pub struct ZstdWorkspace {
    compress: CCtx<'static>,
    decompress: DCtx<'static>,
}

impl fmt::Debug for ZstdWorkspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdWorkspace").finish_non_exhaustive()
    }
}

impl Zstd {
    fn workspace(&self) -> Option<ZstdWorkspace> {
        let mut workspace = ZstdWorkspace { compress: CCtx::try_create()?, decompress: DCtx::try_create()? };
        let parameters = [
            CParameter::CompressionLevel(self.level),
            // All pages are of one length.
            CParameter::ContentSizeFlag(false),
        ];
        parameters.into_iter().try_for_each(|one| workspace.compress.set_parameter(one).map(|_| ())).ok()?;
        Some(workspace)
    }
}

impl Codec for Zstd {
    type Workspace = ZstdWorkspace;

    const NAME: &'static str = "zstd";

    fn init<'p>(&self, place: &'p mut MaybeUninit<ZstdWorkspace>) -> Option<&'p mut ZstdWorkspace> {
        self.workspace().map(|workspace| place.write(workspace))
    }

    fn compress(
        &self,
        workspace: &mut ZstdWorkspace,
        page: &[u8; PAGE_SIZE as usize],
        output: &mut [u8; CODEC_OUTPUT],
    ) -> Option<usize> {
        workspace.compress.compress2(&mut output[..], page).ok()
    }

    fn decompress(
        &self,
        workspace: &mut ZstdWorkspace,
        compressed: &[u8],
        page: &mut [u8; PAGE_SIZE as usize],
    ) -> Result<(), Damaged> {
        match workspace.decompress.decompress(&mut page[..], compressed) {
            Ok(length) if length == page.len() => Ok(()),
            _ => Err(Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_damage_is_found_or_harmless() {
        let codec = Zstd::default();
        let mut workspace = codec.workspace().expect("the host has memory");
        let mut output = [0; CODEC_OUTPUT];
        for kind in 0..4u32 {
            let mut state = 0x9e37_79b9u32;
            let page: [u8; 4096] = std::array::from_fn(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if at as u32 % 4 < kind { (state >> 24) as u8 } else { (at / 64) as u8 }
            });
            let length = codec.compress(&mut workspace, &page, &mut output).expect("it fits");
            assert!(kind > 0 || length < 1024, "{length}");
            let mut back = [0; 4096];
            assert_eq!(codec.decompress(&mut workspace, &output[..length], &mut back), Ok(()));
            assert_eq!(back, page);
            assert_eq!(codec.decompress(&mut workspace, &output[..length / 2], &mut back), Err(Damaged));
        }
    }
}
