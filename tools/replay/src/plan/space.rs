//! The pages and page tables of an address space.

use super::block::{Bits, Block, Demand, PAGES, order_of};
use super::budget::{Budget, PAGES_OF_WALK};
use super::file_pages::Brought;
use super::layout::{Kind, Layout, USER_END};
use super::pages::{INHERITED_BYTES, Inherited, PlannedPages, leave_dropped};
use super::tables::{BLOCK_SHIFT, Tables, UPPER_SHIFTS};
use std::ops::Range;
use std::sync::Arc;

/// Pages of 4 KiB, as a shift.
const PAGE_SHIFT: u32 = 12;
/// Blocks that are looked at again after a child is gone.
const MOST_LOOKED_AT: usize = 1 << 10;
/// VMAs that a page holds at least, with what finds them.
const VMAS_IN_PAGE: u64 = 12;

/// Bytes that an address space, one of its mappings, and one of its upper tables take in a plan.
const IMAGE_BYTES: u64 = 1024;
const MAPPING_BYTES: u64 = 64;
const TABLE_BYTES: u64 = 32;

/// One address space.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// Threads that use it.
    pub(super) users: u32,
    pub(super) layout: Layout,
    /// Where its heap begins and ends.
    pub(super) start_brk: u64,
    pub(super) brk: u64,
    /// Bytes that its stack may have.
    pub(super) most_stack: u64,
    /// What is mapped from now on comes in at once.
    pub(super) locks_new: bool,
    /// Calls are missing, so that the mappings are not known.
    pub(super) incomplete: bool,
    pub(super) own: PlannedPages,
    /// The layer that it stands on, which it has in common with others.
    pub(super) top: Option<usize>,
    /// The pages of that and of all layers below, but for those that it dropped since.
    pub(super) inherited: Arc<Inherited>,
    /// It dropped some: what it inherited is its own view.
    pub(super) has_dropped: bool,
    tables: Tables,
    /// What was counted without looking whether it is new.
    loose: Demand,
    /// What of it is part of the sum of all.
    pub(super) counted: Demand,
    /// The bytes of the budget that it holds.
    pub(super) held: u64,
    /// Pages of files that came in since they were counted.
    pub(super) brought: Vec<Brought>,
}

/// The blocks that hold a range of addresses.
fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start >> BLOCK_SHIFT..range.end.div_ceil(1 << BLOCK_SHIFT)
}

/// The addresses of a block.
fn addrs_of(block: u64) -> Range<u64> {
    block << BLOCK_SHIFT..(block + 1) << BLOCK_SHIFT
}

/// The pages of a block that lie in a range of addresses.
fn part_of(block: u64, range: &Range<u64>) -> Bits {
    let start = block << BLOCK_SHIFT;
    let page = |addr: u64| (addr.saturating_sub(start) >> PAGE_SHIFT).min(PAGES);
    Bits::range(page(range.start), page(range.end))
}

impl Image {
    /// An address space without mappings, of one thread.
    pub(super) fn new() -> Self {
        Self { users: 1, ..Self::default() }
    }

    /// What it needs beside its layers.
    pub(super) fn demand(&self) -> Demand {
        let mut sum = self.own.demand;
        sum.add(&self.loose);
        sum.single += self.tables.count + self.layout.len() as u64 / VMAS_IN_PAGE;
        sum
    }

    /// Bytes that the plan of it takes, beside its blocks.
    pub(super) fn bytes(&self) -> u64 {
        let view = if self.has_dropped { self.inherited.len() as u64 * INHERITED_BYTES } else { 0 };
        IMAGE_BYTES + self.layout.len() as u64 * MAPPING_BYTES + self.tables.len() * TABLE_BYTES + view
    }

    /// Its page tables, of all levels.
    pub(super) fn tables(&self) -> u64 {
        self.tables.count
    }

    fn has_table(&self, block: u64) -> bool {
        self.own.blocks.contains_key(&block) || self.inherited.contains_key(&block)
    }

    /// A call looks at all mappings and page tables of `range`. `false` if that is too much.
    pub(super) fn walk(&self, budget: &mut Budget, range: &Range<u64>) -> bool {
        let mappings = self.layout.within(range.clone()).count() as u64;
        let blocks = blocks_of(range);
        let tables = self.own.blocks.range(blocks.clone()).count() + self.inherited.range(blocks).count();
        budget.mappings(mappings) && budget.walk(tables as u64)
    }

    /// Where in a block touches can bring in more than a page, and how many mappings it has.
    fn large_in(&self, block: u64) -> ([Bits; 2], u64) {
        let (mut large, mut mappings) = ([Bits::default(); 2], 0);
        for (part, kind) in self.layout.within(addrs_of(block)) {
            mappings += 1;
            if let Some(place) = kind.large() {
                large[place] = large[place].or(&part_of(block, &part));
            }
        }
        (large, mappings)
    }

    /// Makes sure that there is a block. `false` if there may be no more.
    fn enter(&mut self, budget: &mut Budget, block: u64) -> bool {
        if self.own.blocks.contains_key(&block) {
            return true;
        }
        if budget.blocks == 0 {
            return false;
        }
        budget.blocks -= 1;
        if !self.has_table(block) {
            self.tables.add(block);
        }
        let (large, _) = self.large_in(block);
        self.own.blocks.insert(block, Block::of(large));
        true
    }

    /// Counts `pages` touches that may need `tables` page tables.
    fn count_loosely(&mut self, pages: u64, tables: u64, kind: Kind) {
        self.loose.single = self.loose.single.saturating_add(tables);
        match kind.large() {
            None => self.loose.single = self.loose.single.saturating_add(pages),
            Some(place) => {
                for (way, sum) in self.loose.large[place].iter_mut().enumerate() {
                    *sum = sum.saturating_add(pages << order_of(way));
                }
            }
        }
    }

    /// The stack above `addr` grows down to it, if there is one and it may.
    pub(super) fn grow_stack(&mut self, addr: u64) {
        if addr < USER_END {
            self.layout.touched(addr, self.most_stack);
        }
    }

    /// A page is touched. Returns whether anything changed.
    pub(super) fn touch(&mut self, budget: &mut Budget, addr: u64, writes: Option<bool>) -> bool {
        if addr >= USER_END {
            return false;
        }
        let kind = match self.layout.touched(addr, self.most_stack) {
            Some(kind) => kind,
            None if self.incomplete => {
                Kind { accessible: true, readable: true, writable: true, ..Kind::default() }
            }
            None => return false,
        };
        if !kind.accessible {
            return false;
        }
        // Where the access is not known, a write is tried first.
        let writes = writes.unwrap_or(kind.writable);
        let framed = kind.takes_frame(writes);
        let (block, page) = (addr >> BLOCK_SHIFT, addr >> PAGE_SHIFT & (PAGES - 1));
        if let Some(known) = self.own.blocks.get(&block)
            && known.touched.has(page)
            && (!framed || known.framed.has(page))
        {
            return false;
        }
        if let Some(file) = kind.file {
            let part = self.layout.at(addr).map(|(part, _)| part).filter(|_| !writes);
            self.brought.push(part.map_or_else(|| file.one(addr), |part| file.window(addr, &part)));
        }
        if !self.enter(budget, block) {
            self.count_loosely(framed.into(), 1 + UPPER_SHIFTS.len() as u64, kind);
            return true;
        }
        let inherited = kind.anonymous && self.inherited.get(&block).is_some_and(|touched| touched.has(page));
        if inherited && !framed {
            return true;
        }
        if inherited {
            self.own.edit(block, |block| block.copy(page, framed));
        } else if let Some(block) = self.own.blocks.get_mut(&block) {
            self.own.demand.add(&block.touch(page, framed));
        }
        true
    }

    /// A touch past the end of a file whose size is known. Returns whether anything changed.
    pub(super) fn touch_past_end(&mut self, budget: &mut Budget, addr: u64, writes: Option<bool>) -> bool {
        let Some((part, kind)) = self.layout.at(addr).filter(|(_, kind)| kind.accessible) else {
            return false;
        };
        let Some(file) = kind.file else { return false };
        if !writes.unwrap_or(kind.writable) {
            self.brought.push(file.before_end(addr, &part));
        }
        if !self.enter(budget, addr >> BLOCK_SHIFT) {
            self.count_loosely(0, 1 + UPPER_SHIFTS.len() as u64, kind);
        }
        true
    }

    /// All that is mapped in `range` comes in, by reads if `reads`. `false` if that is too much.
    pub(super) fn populate(&mut self, budget: &mut Budget, range: Range<u64>, reads: bool) -> bool {
        let parts: Vec<_> = self.layout.within(range).collect();
        if !budget.mappings(parts.len() as u64) {
            return false;
        }
        for (part, kind) in parts.into_iter().filter(|(_, kind)| kind.accessible) {
            let blocks = blocks_of(&part);
            let (count, pages) = (blocks.end - blocks.start, (part.end - part.start) >> PAGE_SHIFT);
            if !budget.bring_in(pages) || !budget.edit(count + 1) {
                return false;
            }
            let framed = kind.takes_frame(kind.writable && !reads);
            self.brought.extend(kind.file.map(|file| file.all(&part)));
            if count > budget.blocks {
                // All of it: of no order does it bring in more.
                let framed = if framed { pages } else { 0 };
                self.loose.single = self.loose.single.saturating_add(framed + count + count / PAGES + 2);
                continue;
            }
            for block in blocks {
                self.enter(budget, block);
                let bits = part_of(block, &part);
                self.own.edit(block, |block| {
                    block.touched = block.touched.or(&bits);
                    if framed {
                        block.framed = block.framed.or(&bits);
                    }
                });
            }
        }
        true
    }

    /// All that is mapped in `range` is there where touches bring in large folios. `false` if that is too
    /// much.
    pub(super) fn fill_large(&mut self, budget: &mut Budget, range: Range<u64>) -> bool {
        let parts: Vec<_> = self.layout.within(range).collect();
        if !budget.mappings(parts.len() as u64) {
            return false;
        }
        for (part, _) in parts.into_iter().filter(|(_, kind)| kind.accessible && kind.anonymous) {
            let blocks = blocks_of(&part);
            let count = blocks.end - blocks.start;
            if !budget.bring_in((part.end - part.start) >> PAGE_SHIFT) || !budget.edit(count + 1) {
                return false;
            }
            for block in blocks.take(usize::try_from(budget.blocks).unwrap_or(usize::MAX)) {
                if self.enter(budget, block) {
                    let bits = part_of(block, &part);
                    self.own.edit(block, |block| block.fill_large(&bits));
                }
            }
        }
        true
    }

    /// Page tables for all that is mapped in `range`. `false` if that is too much.
    pub(super) fn make_tables(&mut self, budget: &mut Budget, range: Range<u64>) -> bool {
        let parts: Vec<_> = self.layout.within(range).collect();
        if !budget.mappings(parts.len() as u64) {
            return false;
        }
        for (part, _) in parts {
            let blocks = blocks_of(&part);
            let count = blocks.end - blocks.start;
            if !budget.walk(count) {
                return false;
            }
            if count > budget.blocks {
                self.loose.single = self.loose.single.saturating_add(count + count / PAGES + 2);
                continue;
            }
            for block in blocks {
                self.enter(budget, block);
            }
        }
        true
    }

    /// The pages in `range` are gone; their tables stay.
    pub(super) fn drop_pages(&mut self, budget: &mut Budget, range: &Range<u64>) -> bool {
        let found: Vec<u64> = self.own.blocks.range(blocks_of(range)).map(|(block, _)| *block).collect();
        for &block in &found {
            let gone = part_of(block, range);
            self.own.edit(block, |block| block.drop_pages(&gone));
        }
        budget.edit(found.len() as u64) && self.drop_inherited(budget, range)
    }

    /// What is touched in `range` from now on is new, whatever others still have there. Its tables stay.
    /// `false` if that is too much to look at.
    fn drop_inherited(&mut self, budget: &mut Budget, range: &Range<u64>) -> bool {
        if self.inherited.range(blocks_of(range)).next().is_none() {
            return true;
        }
        let is_shared = Arc::get_mut(&mut self.inherited).is_none();
        if is_shared && !budget.visit(self.inherited.len() as u64) {
            return false;
        }
        self.has_dropped = true;
        let mut dropped = 0;
        for (block, pages) in Arc::make_mut(&mut self.inherited).range_mut(blocks_of(range)) {
            *pages = pages.without(&part_of(*block, range));
            dropped += 1;
        }
        budget.edit(dropped)
    }

    /// The mappings in `range` have changed: tables of blocks in which there are none are gone, and what
    /// touches bring in is another. `false` if that is too much to look at.
    pub(super) fn look_again(&mut self, budget: &mut Budget, range: &Range<u64>) -> bool {
        let found: Vec<u64> = self.own.blocks.range(blocks_of(range)).map(|(block, _)| *block).collect();
        let mut mappings = 0;
        for &block in &found {
            let (large, mapped) = self.large_in(block);
            mappings += mapped;
            if mapped == 0 {
                self.own.remove(block);
                budget.blocks += 1;
                if !self.has_table(block) {
                    self.tables.remove(block);
                }
                continue;
            }
            self.own.edit(block, |block| block.set_large(large));
        }
        budget.edit(found.len() as u64) && budget.visit(mappings / 4)
    }

    /// What is in `from` is now at `to`. The mappings were moved before. What others have, too, counts as if
    /// it was copied: it stays here when they go, and is found at its old place no more.
    pub(super) fn move_pages(&mut self, budget: &mut Budget, from: &Range<u64>, to: u64) -> bool {
        let inherited: Vec<(u64, Bits)> =
            self.inherited.range(blocks_of(from)).map(|(number, pages)| (*number, *pages)).collect();
        let found: Vec<(u64, Block)> =
            self.own.blocks.range(blocks_of(from)).map(|(number, block)| (*number, block.clone())).collect();
        // Each page is looked at.
        if !self.drop_inherited(budget, from)
            || !budget.visit((inherited.len() + found.len()) as u64 * PAGES / 4)
        {
            return false;
        }
        let place = |addr: u64| to + (addr.clamp(from.start, from.end - 1) - from.start);
        for (number, pages) in inherited {
            self.enter(budget, place(addrs_of(number).start) >> BLOCK_SHIFT);
            // Of the pages that it wrote it has its own.
            let own = self.own.blocks.get(&number).map_or(Bits::default(), |block| block.touched);
            for page in pages.without(&own).and(&part_of(number, from)).pages() {
                self.put_page(budget, place((number << BLOCK_SHIFT) + (page << PAGE_SHIFT)), true, false);
            }
        }
        for (number, block) in found {
            let moved = part_of(number, from);
            self.own.edit(number, |block| block.drop_pages(&moved));
            for page in block.touched.and(&moved).pages() {
                let addr = place((number << BLOCK_SHIFT) + (page << PAGE_SHIFT));
                self.put_page(budget, addr, block.framed.has(page), block.copied.has(page));
            }
        }
        true
    }

    /// A page is moved to `addr`.
    fn put_page(&mut self, budget: &mut Budget, addr: u64, framed: bool, copied: bool) {
        let (number, page) = (addr >> BLOCK_SHIFT, addr >> PAGE_SHIFT & (PAGES - 1));
        if !self.enter(budget, number) {
            self.count_loosely(1, 1, Kind::default());
        } else if copied {
            self.own.edit(number, |block| block.copy(page, framed));
        } else if let Some(block) = self.own.blocks.get_mut(&number) {
            self.own.demand.add(&block.touch(page, framed));
        }
    }

    /// A copy for a child, which stands on the same layer. `None` if that is too much.
    pub(super) fn fork(&self, budget: &mut Budget) -> Option<Self> {
        let walked = budget.mappings(self.layout.len() as u64)
            && budget.visit(self.tables.len())
            && budget.bring_in(self.tables.count.saturating_mul(PAGES_OF_WALK));
        let mut child = walked.then(|| Self {
            users: 1,
            layout: self.layout.clone(),
            start_brk: self.start_brk,
            brk: self.brk,
            most_stack: self.most_stack,
            locks_new: false,
            incomplete: self.incomplete,
            own: PlannedPages::default(),
            top: self.top,
            inherited: Arc::clone(&self.inherited),
            has_dropped: self.has_dropped,
            tables: self.tables.clone(),
            loose: self.loose,
            counted: Demand::default(),
            held: 0,
            brought: Vec::new(),
        })?;
        child.layout.note_copied();
        child.leave_at_fork(budget).then_some(child)
    }

    /// Drops what advice keeps from a child. `false` if that is too much to look at.
    fn leave_at_fork(&mut self, budget: &mut Budget) -> bool {
        let parts = self.layout.within(0..USER_END);
        let parts: Vec<_> = parts.filter(|(_, kind)| kind.wiped_at_fork || kind.left_at_fork).collect();
        budget.edit(parts.len() as u64)
            && parts.into_iter().all(|(part, kind)| {
                if kind.left_at_fork {
                    self.layout.clear(part.clone());
                }
                self.drop_inherited(budget, &part)
            })
    }

    /// What it had in common with others is its own again, and it inherits what is below. `false` if that is
    /// too much to look at.
    pub(super) fn take(
        &mut self,
        budget: &mut Budget,
        mut pages: PlannedPages,
        below: Arc<Inherited>,
    ) -> bool {
        let seen = std::mem::replace(&mut self.inherited, below);
        if self.has_dropped && !leave_dropped(budget, &seen, &mut pages, &mut self.inherited) {
            return false;
        }
        let ok = self.own.take(budget, pages);
        // Mappings may have changed since the fork.
        let few = self.own.blocks.len() <= MOST_LOOKED_AT;
        ok && (!few || self.look_again(budget, &(0..USER_END)))
    }
}
