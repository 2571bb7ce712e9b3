//! How many page tables an address space has.

use std::collections::HashMap;

/// Blocks of what a table of pages maps, and what tables of the levels above map, as shifts.
pub(super) const BLOCK_SHIFT: u32 = 21;
pub(super) const UPPER_SHIFTS: [u32; 2] = [30, 39];

/// Page tables of all levels.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    /// How many tables the tables of the upper levels hold.
    upper: [HashMap<u64, u32>; UPPER_SHIFTS.len()],
    pub(super) count: u64,
}

impl Tables {
    pub(super) fn add(&mut self, block: u64) {
        self.count += 1;
        for (tables, shift) in self.upper.iter_mut().zip(UPPER_SHIFTS) {
            let held = tables.entry(block >> (shift - BLOCK_SHIFT)).or_default();
            *held += 1;
            if *held > 1 {
                break;
            }
            self.count += 1;
        }
    }

    pub(super) fn remove(&mut self, block: u64) {
        self.count -= 1;
        for (tables, shift) in self.upper.iter_mut().zip(UPPER_SHIFTS) {
            let number = block >> (shift - BLOCK_SHIFT);
            let Some(held) = tables.get_mut(&number) else { break };
            *held -= 1;
            if *held > 0 {
                break;
            }
            tables.remove(&number);
            self.count -= 1;
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.upper.iter().map(|tables| tables.len() as u64).sum()
    }
}
