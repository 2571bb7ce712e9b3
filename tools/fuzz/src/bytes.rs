//! The bytes of an input, taken from the front.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    pub(crate) const fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte, or `None` at the end: where a step begins.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The next byte, or 0 behind the end: inside a step, so that every prefix of an input means something.
    pub(crate) fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A number of two bytes.
    pub(crate) fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Any number, in two bytes where it is near a power of two: the borders are there.
    pub(crate) fn number(&mut self) -> u64 {
        let (what, by) = (self.byte(), self.byte());
        match what {
            0..64 => (1u64 << what).wrapping_add_signed(i64::from(by as i8)),
            64..128 => (1u64 << (what - 64)).wrapping_add_signed(i64::from(by as i8) << 12),
            128..192 => u64::from(by),
            192..224 => u64::from(by) << 12,
            _ => u64::from_le_bytes(core::array::from_fn(|_| self.byte())),
        }
    }

    /// The next `len` bytes, or fewer at the end.
    pub(crate) fn take(&mut self, len: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// One of `from`.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }
}
