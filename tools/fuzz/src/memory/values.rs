//! Addresses and lengths from few bytes, near where something can go wrong.

use crate::bytes::Bytes;
use core::marker::PhantomData;
use quire_arch::{Level, PAGE_SIZE, PagingFormat};

/// Where the last mappings were made, the youngest first.
#[derive(Default, Debug)]
pub(super) struct Areas([u64; 4]);

impl Areas {
    pub(super) fn note(&mut self, addr: u64) {
        self.0.rotate_right(1);
        self.0[0] = addr;
    }
}

/// Values for page tables of format `F`.
#[derive(Debug)]
pub(super) struct Values<'a, F>(&'a Areas, PhantomData<F>);

impl<'a, F: PagingFormat> Values<'a, F> {
    /// The first border of all tables below the root.
    pub(super) fn home() -> u64 {
        F::entry_bytes(F::root_level())
    }

    fn table() -> u64 {
        F::table_bytes(Level::PTE)
    }

    pub(super) const fn new(areas: &'a Areas) -> Self {
        Self(areas, PhantomData)
    }

    /// An address: the top bits of a byte choose a landmark, the low ones a page around it.
    pub(super) fn address(&self, bytes: &mut Bytes<'_>) -> u64 {
        let byte = bytes.byte();
        let near = u64::from(byte & 31);
        // Mostly inside of a mapping, seldom before it.
        let (landmark, before) = match byte >> 5 {
            0 => (self.0.0[0], 2),
            1 => (self.0.0[1], 2),
            2 => (self.0.0[2 + usize::from(byte & 1)], 2),
            3 | 4 => (Self::home(), 16),
            5 => (Self::home() + Self::table(), 16),
            6 if near < 16 => (F::USER_END.0, 12),
            6 => (0, 16),
            _ => (bytes.number(), 16),
        };
        landmark.wrapping_add(near.wrapping_sub(before).wrapping_mul(PAGE_SIZE))
    }

    /// A length: mostly some pages, else about a table, some odd bytes, or what wraps or fills everything.
    pub(super) fn length(&self, bytes: &mut Bytes<'_>) -> u64 {
        let byte = bytes.byte();
        let low = u64::from(byte & 31);
        match byte >> 5 {
            0..5 => u64::from(byte % 24) * PAGE_SIZE,
            5 => Self::table() * (1 + u64::from(byte & 1)) + low * PAGE_SIZE - 16 * PAGE_SIZE,
            6 => (low << 10) + 1,
            _ => match low {
                0..8 => u64::MAX - low * (PAGE_SIZE / 2),
                8..16 => F::USER_END.0.wrapping_add(12 * PAGE_SIZE) - low * PAGE_SIZE,
                16..24 => (F::USER_END.0 - Self::home()).wrapping_add(20 * PAGE_SIZE) - low * PAGE_SIZE,
                _ => 1 << (2 * low),
            },
        }
    }
}
