//! Fills pages that programs write.

use crate::contents::{self, PAGE_BYTES};
use crate::plan::Needs;
use crate::sampled::page_id;
use crate::space::HostSpace;
use quire_arch::VirtAddr;
use quire_host::Program;
use std::collections::HashSet;
use std::sync::Arc;

/// Fills pages that programs write.
pub(super) struct Writer {
    pub(super) needs: Arc<Needs>,
    /// Pages filled so far: no page gets the same contents twice.
    filled: u64,
    /// Address spaces that were copied by fork, or are copies: a write may copy a page.
    pub(super) forked: HashSet<usize>,
    page: Box<[u8; PAGE_BYTES]>,
}

impl Writer {
    pub(super) fn new(needs: Arc<Needs>) -> Self {
        Self { needs, filled: 0, forked: HashSet::new(), page: Box::new([0; PAGE_BYTES]) }
    }

    /// Whether the page of `addr` in address space `number` is written without a fault after it came in at
    /// event `event`.
    pub(super) fn changes(&self, number: usize, addr: u64, event: u64) -> bool {
        !self.forked.contains(&number) && self.needs.contents().changes(number, addr, event)
    }

    /// Writes the page of `addr` as a program in address space `number` at event `event`.
    pub(super) fn fill(
        &mut self,
        program: &Program<'_, HostSpace<'_>>,
        number: usize,
        addr: u64,
        event: u64,
    ) {
        let start = addr & !(PAGE_BYTES as u64 - 1);
        self.filled += 1;
        let held = self.needs.contents().of_page(number, start, event);
        contents::fill(held, page_id(number, start), self.filled, &mut self.page);
        // A page that may not be written, or for which there is no memory, was reported when it was
        // touched.
        let _ = program.write(VirtAddr(start), &self.page[..]);
    }
}
