//! Checksums.

pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// A checksum over the checksums of all blocks, in order, so that the trailer covers every one.
#[derive(Debug, Default)]
pub(crate) struct Chain(crc32fast::Hasher);

impl Chain {
    pub(crate) fn add(&mut self, block_crc: u32) {
        self.0.update(&block_crc.to_le_bytes());
    }

    pub(crate) fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}
