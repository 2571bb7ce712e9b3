//! A life of random calls and accesses, each of which is compared with the model.

mod around;

use crate::common::*;
use crate::devices::Devices;
use crate::model::{ARENA, BASE, Mind, Page, Pages, addr, any_range, bytes};
use quire_frame::FailPlan;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Spaces that one life has at once.
const SPACES: usize = 4;
/// Pages that one life locks at once.
const LOCKED: usize = 96;
/// The longest range that a call gets.
const LONGEST: u64 = 640;
/// Memcgs that one life has at once.
const GROUPS: usize = 3;

/// What varies in a life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Devices fail in so many of a thousand requests, by turns.
    pub(crate) errors: u32,
    /// Large folios are enabled and disabled.
    pub(crate) large: bool,
    /// Spaces live in memcgs.
    pub(crate) memcgs: bool,
    /// Devices are added and removed.
    pub(crate) swapoff: bool,
    /// No other program is on the machine.
    pub(crate) alone: bool,
}

pub(crate) struct Life<'m> {
    machine: &'m Machine,
    habits: Habits,
    pub(crate) random: Random,
    minds: Vec<Mind<'m>>,
    memcgs: Vec<MemcgId>,
    pub(crate) devices: Devices,
    /// Values identify their page: no two writes of a run write the same.
    next_value: u64,
    /// Devices may fail now.
    pub(crate) failing: bool,
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl<'m> Life<'m> {
    /// `first_value` is the first of 2^40 values that no other life of the run uses.
    pub(crate) fn new(
        machine: &'m Machine,
        habits: Habits,
        devices: Devices,
        random: Random,
        first_value: u64,
    ) -> Self {
        let mut life = Self {
            machine,
            habits,
            random,
            minds: Vec::new(),
            memcgs: Vec::new(),
            devices,
            next_value: first_value,
            failing: false,
            tally: BTreeMap::new(),
        };
        life.be_born();
        life
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Counts the error of a call, if it was only a want of memory, an error of a device, or something that
    /// the model does not know.
    fn note(&mut self, what: &'static str, error: Error) {
        let expected = matches!(
            error,
            Error::NoFrames(_) | Error::TryAgain(_) | Error::Busy | Error::WrongMapping | Error::NotMapped
        );
        assert!(expected, "{what}: {error}");
        self.count(what);
    }

    fn be_born(&mut self) {
        if let Ok(space) = self.machine.memory().create_space() {
            self.minds.push(Mind { space: Arc::new(space.into()), pages: Pages::new() });
            let at = self.minds.len() - 1;
            self.map(at, 0..ARENA / 2);
        } else {
            self.count("no space");
        }
    }

    /// `count` operations.
    pub(crate) fn live(&mut self, cpu: &Vcpu, count: u64) {
        for _ in 0..count {
            if self.minds.is_empty() {
                self.be_born();
                continue;
            }
            let at = self.random.below(self.minds.len() as u64) as usize;
            self.act(cpu, at);
        }
    }

    fn act(&mut self, cpu: &Vcpu, at: usize) {
        match self.random.below(1000) {
            0..400 => self.write_some(cpu, at),
            400..760 => self.read_some(cpu, at),
            760..775 => {
                let range = self.any_range();
                self.map(at, range);
            }
            775..785 => self.unmap(at),
            785..800 => self.forget(at),
            800..815 => self.free(at),
            815..845 => self.advise(at, Advice::PageOut),
            845..855 => self.advise(at, Advice::Cold),
            855..865 => self.advise(at, Advice::WillNeed),
            865..885 => self.remap(at),
            885..895 => self.protect(at),
            895..905 => self.lock(at),
            905..915 => self.unlock(at),
            915..922 => self.fork(at),
            922..930 => self.exit(at),
            930..940 => drop(self.machine.memory().kswapd_step()),
            940..945 => {
                let pages = 1 + self.random.below(256);
                self.machine.memory().reclaim(MemcgId::ROOT, pages);
            }
            945..960 if self.habits.large => self.change_folios(at),
            960..975 if self.habits.memcgs => self.change_memcgs(at),
            975..976 if self.habits.swapoff && !self.failing && !self.devices.is_empty() => {
                self.change_devices();
            }
            976..979 if self.habits.errors > 0 && self.habits.alone => self.change_luck(),
            _ => {}
        }
    }

    fn any_range(&mut self) -> Range<u64> {
        any_range(&mut self.random, &[1, 4, 16, 64, 64, LONGEST])
    }

    /// A range of mapped pages whose rights and locks are the same.
    fn mapped_range(&mut self, at: usize) -> Option<Range<u64>> {
        let first = self.minds[at].any_page(&mut self.random)?;
        let longest = self.random.pick(&[1, 8, 64, 520]);
        let pages = &self.minds[at].pages;
        let kind = |page: &Page| (page.writable, page.locked);
        let wanted = kind(&pages[&first]);
        let alike = pages.range(first..).zip(first..);
        let len = alike
            .take_while(|&((&number, page), expected)| number == expected && kind(page) == wanted)
            .count();
        Some(first..first + (len as u64).min(1 + self.random.below(longest)))
    }

    fn write_some(&mut self, cpu: &Vcpu, at: usize) {
        let full = self.random.chance(6);
        self.some(at, |life, number| life.write(cpu, at, number, full));
    }

    /// Does something with one page, or with a few in a row. That may end the space.
    fn some(&mut self, at: usize, mut act: impl FnMut(&mut Self, u64)) {
        let Some(first) = self.minds[at].any_page(&mut self.random) else { return };
        let count = self.random.pick(&[1, 1, 1, 4, 32]);
        for number in first..first + count {
            if self.minds.get(at).is_some_and(|mind| mind.pages.contains_key(&number)) {
                act(self, number);
            }
        }
    }

    fn write(&mut self, cpu: &Vcpu, at: usize, number: u64, full: bool) {
        self.next_value += 1;
        let mind = &mut self.minds[at];
        let writable = mind.page(number).writable;
        match mind.write(cpu, number, self.next_value, full) {
            Ok(()) => {
                assert!(writable, "a write to a page that is read-only");
                self.count("written");
            }
            Err(DENIED) => assert!(!writable, "a write to page {number} was refused"),
            Err(error) => self.refused(error),
        }
    }

    fn read_some(&mut self, cpu: &Vcpu, at: usize) {
        self.some(at, |life, number| life.check(cpu, at, number));
    }

    fn check(&mut self, cpu: &Vcpu, at: usize, number: u64) {
        match self.minds[at].check(cpu, number) {
            Ok(()) => self.count("read"),
            Err(error) => self.refused(error),
        }
    }

    /// An access was refused: for want of memory, or since a device failed.
    fn refused(&mut self, error: AccessError<FaultError>) {
        match error {
            AccessError::Fault(FaultError::Bus) => {
                assert!(self.failing, "a page could not be had, though no device fails");
                self.count("SIGBUS");
            }
            AccessError::Fault(FaultError::OutOfMemory(_)) => {
                self.count("out of memory");
                self.give_way();
            }
            other => panic!("{other}"),
        }
    }

    /// Frees memory: removes limits, or exits a space.
    fn give_way(&mut self) {
        let memcgs = self.machine.memory().memcgs();
        for &memcg in &self.memcgs {
            let _ = memcgs.files().set(memcg, Limit::Max, None).expect("the memcg is there");
            let _ = memcgs.files().set(memcg, Limit::SwapMax, None).expect("the memcg is there");
        }
        let full = self.machine.memory().swap().devices().free_slots() < 64;
        if full && self.minds.len() > 1 {
            let at = self.random.below(self.minds.len() as u64) as usize;
            self.exit(at);
        } else if full && let Some(at) = self.minds.len().checked_sub(1) {
            self.unmap(at);
        }
    }

    fn map(&mut self, at: usize, range: Range<u64>) {
        if let Err(error) = self.minds[at].map(range) {
            // What was there may have gone already, as in Linux.
            self.note("no mapping", error);
            self.match_mappings(at);
        }
    }

    /// After a call that stopped half way: rights and locks as they are now. What is mapped anew is zero, and
    /// nothing is.
    fn match_mappings(&mut self, at: usize) {
        let mind = &mut self.minds[at];
        let mut now = Pages::new();
        mind.space.mappings().for_each(|mapping| {
            let (start, end) = (mapping.range.start().0, mapping.range.end().0);
            for number in (start - BASE) / PAGE..(end - BASE) / PAGE {
                let page = mind.pages.get(&number).expect("a page appeared");
                let writable = mapping.flags.contains(VmFlags::WRITE);
                let locked = mapping.flags.contains(VmFlags::LOCKED);
                now.insert(number, Page { writable, locked, ..*page });
            }
        });
        mind.pages = now;
    }

    fn unmap(&mut self, at: usize) {
        let range = self.any_range();
        if let Err(error) = self.minds[at].unmap(range) {
            self.note("not unmapped", error);
        }
    }

    fn forget(&mut self, at: usize) {
        let Some(range) = self.mapped_range(at) else { return };
        self.minds[at].forget(range);
        self.count("dropped");
    }

    fn free(&mut self, at: usize) {
        let range = self.any_range();
        if let Err(error) = self.minds[at].free(range) {
            self.note("not freed", error);
        }
    }

    fn advise(&mut self, at: usize, advice: Advice) {
        let range = self.any_range();
        if let Err(error) = self.minds[at].advise(&range, advice) {
            self.note("advice not taken", error);
        }
    }

    fn remap(&mut self, at: usize) {
        let Some(old) = self.mapped_range(at) else { return };
        let len = old.end - old.start;
        let new_len = match self.random.below(3) {
            0 => len,
            1 => 1 + self.random.below(len),
            _ => len + 1 + self.random.below(32),
        };
        if self.minds[at].pages[&old.start].locked {
            return;
        }
        let (bytes, new_bytes) = (len * PAGE, new_len * PAGE);
        let moves = self.random.chance(70);
        let target = self.random.below(ARENA - new_len);
        let (flags, new) = if moves {
            (RemapFlags::MAYMOVE | RemapFlags::FIXED, target..target + new_len)
        } else {
            (RemapFlags::empty(), old.start..old.start + new_len)
        };
        if moves && target < old.end && old.start < new.end || new.end > ARENA {
            return;
        }
        let mind = &mut self.minds[at];
        let moved = mind.space.mremap(addr(old.start), bytes, new_bytes, flags, addr(new.start));
        let kept: Vec<Page> = mind.pages.range(old.clone()).map(|(_, &page)| page).collect();
        match moved {
            Ok(now) => {
                assert_eq!(now, addr(new.start));
                mind.pages.retain(|number, _| !(old.contains(number) || moves && new.contains(number)));
                let writable = kept[0].writable;
                let fresh = Page { writable, ..Page::NEW };
                let pages = kept.into_iter().chain(std::iter::repeat(fresh));
                mind.pages.extend(new.zip(pages));
                self.count("moved");
            }
            // The range is of several mappings, or nothing is free behind it.
            Err(Error::BadAddress | Error::CannotGrow | Error::NoFrames(_)) => {
                self.count("not moved");
                self.match_mappings(at);
            }
            Err(error) => panic!("mremap: {error}"),
        }
    }

    fn protect(&mut self, at: usize) {
        let Some(range) = self.mapped_range(at) else { return };
        let writable = self.random.chance(60);
        let mind = &mut self.minds[at];
        let protection = if writable { RW } else { READ };
        match mind.space.mprotect(addr(range.start), bytes(&range), protection, false) {
            Ok(()) => mind.pages.range_mut(range).for_each(|(_, page)| page.writable = writable),
            Err(error) => {
                self.note("not protected", error);
                self.match_mappings(at);
            }
        }
    }

    fn lock(&mut self, at: usize) {
        let locked: usize = self.minds.iter().map(Mind::locked).sum();
        let Some(range) = self.mapped_range(at) else { return };
        let len = (range.end - range.start).min(16);
        if locked + len as usize > LOCKED {
            return;
        }
        let range = range.start..range.start + len;
        let on_fault = self.random.chance(30);
        let mind = &mut self.minds[at];
        match mind.space.mlock(addr(range.start), len * PAGE, on_fault) {
            Ok(()) => mind.pages.range_mut(range).for_each(|(_, page)| page.locked = true),
            Err(error) => {
                assert!(
                    self.failing || matches!(error, Error::NoFrames(_) | Error::TryAgain(_) | Error::Busy),
                    "mlock: {error}"
                );
                self.count("not locked");
                self.match_mappings(at);
            }
        }
    }

    fn unlock(&mut self, at: usize) {
        if let Err(error) = self.minds[at].unlock() {
            self.note("not unlocked", error);
        }
    }

    fn fork(&mut self, at: usize) {
        if self.minds.len() == SPACES {
            return;
        }
        match self.minds[at].fork() {
            Ok(child) => {
                self.minds.push(child);
                self.count("forked");
            }
            Err(error) => self.note("not forked", error),
        }
    }

    fn exit(&mut self, at: usize) {
        if self.minds.len() > 1 {
            drop(self.minds.swap_remove(at));
            self.count("gone");
        }
    }

    /// Devices work from now on.
    pub(crate) fn end_failures(&mut self) {
        self.failing = false;
        self.machine.memory().frames().fail_points().set(FailPlan::OFF);
    }

    /// Reads every page. Limits go first, so that there is memory for it.
    pub(crate) fn check_all(&mut self, cpu: &Vcpu) {
        let memcgs = self.machine.memory().memcgs();
        for &memcg in &self.memcgs {
            for limit in [Limit::Max, Limit::High, Limit::SwapMax] {
                let _ = memcgs.files().set(memcg, limit, None).expect("the memcg is there");
            }
        }
        for at in 0..self.minds.len() {
            let numbers: Vec<u64> = self.minds[at].pages.keys().copied().collect();
            for number in numbers {
                if self.minds.get(at).is_some_and(|mind| mind.pages.contains_key(&number)) {
                    self.check(cpu, at, number);
                }
            }
        }
    }

    /// Exits all spaces. Returns the devices.
    pub(crate) fn die(mut self) -> (Devices, BTreeMap<&'static str, u64>) {
        self.minds.clear();
        let memcgs = self.machine.memory().memcgs();
        // Children first.
        while !self.memcgs.is_empty() {
            self.memcgs.retain(|&memcg| memcgs.lifecycle().remove(memcg).is_err());
        }
        (self.devices, self.tally)
    }
}
