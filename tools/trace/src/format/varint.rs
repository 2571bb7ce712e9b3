//! Numbers of variable length: seven bits a byte, low bits first, the top bit set on all but the last byte.

use super::Version;

/// Why bytes could not be decoded; the reader adds the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

pub(crate) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small numbers of either sign become small unsigned ones: 0, -1, 1, -2, ...
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// The difference of a number from the last one of its kind.
pub(crate) fn difference(new: u64, old: u64) -> u64 {
    zigzag(new.wrapping_sub(old) as i64)
}

/// A place in decoded bytes that only moves forward, and never past the end.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    version: Version,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize, version: Version) -> Self {
        Self { bytes, at, version }
    }

    /// The version of the file that the bytes are from.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed("an event ends too early"))?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let first = self.u8()?;
        if first < 0x80 { Ok(u64::from(first)) } else { self.u64_rest(u64::from(first & 0x7f)) }
    }

    fn u64_rest(&mut self, mut value: u64) -> Result<u64, Malformed> {
        let mut shift = 7;
        loop {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte holds one bit only.
            if shift == 63 && part > 1 {
                return Err(Malformed("a number is too large"));
            }
            value |= part << shift;
            if byte < 0x80 {
                // One encoding per number: a last byte of zero is padding that no writer makes.
                return if byte == 0 { Err(Malformed("a number is padded")) } else { Ok(value) };
            }
            shift += 7;
            if shift > 63 {
                return Err(Malformed("a number is too long"));
            }
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed("a number is too large"))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u64()?;
        let rest = &self.bytes[self.at..];
        let len = usize::try_from(len).ok().filter(|len| *len <= rest.len());
        let len = len.ok_or(Malformed("a string is longer than its block"))?;
        self.at += len;
        Ok(&rest[..len])
    }

    /// A number of which the difference from the last one of its kind is stored.
    #[inline]
    pub(crate) fn restore(&mut self, old: u64) -> Result<u64, Malformed> {
        self.u64().map(|difference| old.wrapping_add(unzigzag(difference) as u64))
    }

    /// The count of items that follow. Each takes `least` bytes or more, so that a false count cannot make
    /// the caller reserve more than a small multiple of the block.
    pub(crate) fn count(&mut self, least: usize) -> Result<usize, Malformed> {
        let count = self.u64()?;
        let room = (self.bytes.len() - self.at) / least;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= room)
            .ok_or(Malformed("a count is larger than its block"))
    }
}
