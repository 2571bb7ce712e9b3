//! A life of random calls and accesses, each of which is compared with the model.

use crate::common::{AccessResult, DENIED, HostSpace, MIB2, PAGE, READ, RW, Random};
use crate::devices::Devices;
use crate::model::{Page, Pages, WORDS};
use quire_arch::VirtAddr;
use quire_frame::{FaultAim, FaultClass, FaultPlan};
use quire_host::{AccessError, Machine, Vcpu};
use quire_mm::{
    Advice, Error, FaultError, Limit, MapFlags, MapRequest, MemcgId, OrderSet, RemapFlags, SizeEnabled,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where the arena of every space begins: aligned to the largest folio, and below a border of tables.
pub(crate) const BASE: u64 = (1 << 30) - MIB2;
/// Pages of an arena.
pub(crate) const ARENA: u64 = 3072;
/// Spaces that one life has at once.
const SPACES: usize = 4;
/// Pages that one life locks at once.
const LOCKED: usize = 96;
/// The longest range that a call gets.
const LONGEST: u64 = 640;
/// Memcgs that one life has at once.
const GROUPS: usize = 3;

/// A space and what it must hold.
pub(crate) struct Mind<'m> {
    pub(crate) space: HostSpace<'m>,
    pub(crate) pages: Pages,
}

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
            self.minds.push(Mind { space, pages: Pages::new() });
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
        let longest = self.random.pick(&[1, 4, 16, 64, 64, LONGEST]);
        let len = 1 + self.random.below(longest);
        let first = self.random.below(ARENA - len);
        first..first + len
    }

    /// A page that is mapped.
    fn any_page(&mut self, at: usize) -> Option<u64> {
        let from = self.random.below(ARENA);
        let pages = &self.minds[at].pages;
        pages.range(from..).chain(pages.range(..from)).next().map(|(&page, _)| page)
    }

    /// A range of mapped pages whose rights and locks are the same.
    fn mapped_range(&mut self, at: usize) -> Option<Range<u64>> {
        let first = self.any_page(at)?;
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
        let Some(first) = self.any_page(at) else { return };
        let count = self.random.pick(&[1, 1, 1, 4, 32]);
        let full = self.random.chance(6);
        for number in first..first + count {
            if self.minds.get(at).is_some_and(|mind| mind.pages.contains_key(&number)) {
                self.write(cpu, at, number, full);
            }
        }
    }

    fn write(&mut self, cpu: &Vcpu, at: usize, number: u64, full: bool) {
        self.next_value += 1;
        let value = self.next_value;
        let mind = &mut self.minds[at];
        let program = cpu.program(&mind.space);
        let addr = addr(number);
        let page = mind.pages.get_mut(&number).expect("the caller looked");
        let mut done = 0;
        let result: AccessResult<()> = if full {
            let bytes = Page::bytes(value);
            // The first word shows whether anything was written.
            program.write(addr, &bytes[..8]).and_then(|()| {
                done = 1;
                program.write(VirtAddr(addr.0 + 8), &bytes[8..])
            })
        } else {
            WORDS.iter().try_for_each(|&offset| {
                program.write_u64(VirtAddr(addr.0 + offset), Page::word(value, offset))?;
                done += 1;
                Ok(())
            })
        };
        match result {
            Ok(()) => {
                assert!(page.writable, "a write to a page that is read-only");
                *page = Page { value, full, lazy: false, ..*page };
                self.count("written");
            }
            Err(DENIED) => assert!(!page.writable, "a write to page {number} was refused"),
            Err(error) => {
                if done > 0 {
                    // Half of it was written.
                    let advice = Advice::DontNeedLocked;
                    mind.space.madvise(addr, PAGE, advice).expect("dropping a page cannot fail");
                    *page = Page { writable: page.writable, locked: page.locked, ..Page::NEW };
                }
                self.refused(error);
            }
        }
    }

    fn read_some(&mut self, cpu: &Vcpu, at: usize) {
        let Some(first) = self.any_page(at) else { return };
        let count = self.random.pick(&[1, 1, 1, 4, 32]);
        for number in first..first + count {
            if self.minds.get(at).is_some_and(|mind| mind.pages.contains_key(&number)) {
                self.check(cpu, at, number);
            }
        }
    }

    /// Reads a page, which must hold what the model says. Returns whether it could be read.
    fn check(&mut self, cpu: &Vcpu, at: usize, number: u64) -> bool {
        let mind = &mut self.minds[at];
        let program = cpu.program(&mind.space);
        let page = mind.pages.get_mut(&number).expect("the caller looked");
        for offset in WORDS {
            match program.read_u64(VirtAddr(addr(number).0 + offset)) {
                Ok(0) if page.lazy => *page = Page { value: 0, full: false, lazy: false, ..*page },
                Ok(seen) => {
                    let expected = Page::word(page.value, offset);
                    assert_eq!(seen, expected, "page {number} at {offset} of space {at}: {page:?}");
                }
                Err(error) => {
                    self.refused(error);
                    return false;
                }
            }
        }
        if page.full && !page.lazy {
            let mut bytes = vec![0; PAGE as usize];
            if let Err(error) = program.read(addr(number), &mut bytes) {
                self.refused(error);
                return false;
            }
            assert!(bytes == Page::bytes(page.value), "page {number} of space {at}: {page:?}");
        }
        self.count("read");
        true
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
            let _ = memcgs.set(memcg, Limit::Max, None).expect("the memcg is there");
            let _ = memcgs.set(memcg, Limit::SwapMax, None).expect("the memcg is there");
        }
        let full = self.machine.memory().swap().free_slots() < 64;
        if full && self.minds.len() > 1 {
            let at = self.random.below(self.minds.len() as u64) as usize;
            self.exit(at);
        } else if full && let Some(at) = self.minds.len().checked_sub(1) {
            self.unmap(at);
        }
    }

    fn map(&mut self, at: usize, range: Range<u64>) {
        let request = MapRequest::anonymous((range.end - range.start) * PAGE, RW);
        let mind = &mut self.minds[at];
        match mind.space.mmap(&request.at(addr(range.start), MapFlags::FIXED)) {
            Ok(_) => mind.pages.extend(range.map(|number| (number, Page::NEW))),
            Err(error) => {
                // What was there may have gone already, as in Linux.
                self.note("no mapping", error);
                self.match_mappings(at);
            }
        }
    }

    /// After a call that stopped half way: rights and locks as they are now. What is mapped anew is zero, and
    /// nothing is.
    fn match_mappings(&mut self, at: usize) {
        let mind = &mut self.minds[at];
        let mut now = Pages::new();
        mind.space.for_each_mapping(|mapping| {
            let (start, end) = (mapping.range.start().0, mapping.range.end().0);
            for number in (start - BASE) / PAGE..(end - BASE) / PAGE {
                let page = mind.pages.get(&number).expect("a page appeared");
                let writable = mapping.flags.contains(quire_mm::VmFlags::WRITE);
                let locked = mapping.flags.contains(quire_mm::VmFlags::LOCKED);
                now.insert(number, Page { writable, locked, ..*page });
            }
        });
        mind.pages = now;
    }

    fn unmap(&mut self, at: usize) {
        let range = self.any_range();
        let mind = &mut self.minds[at];
        match mind.space.munmap(addr(range.start), (range.end - range.start) * PAGE) {
            Ok(()) => mind.pages.retain(|number, _| !range.contains(number)),
            Err(error) => self.note("not unmapped", error),
        }
    }

    fn forget(&mut self, at: usize) {
        let Some(range) = self.mapped_range(at) else { return };
        let mind = &mut self.minds[at];
        let len = (range.end - range.start) * PAGE;
        mind.space.madvise(addr(range.start), len, Advice::DontNeedLocked).expect("dropping cannot fail");
        for (_, page) in mind.pages.range_mut(range) {
            *page = Page { writable: page.writable, locked: page.locked, ..Page::NEW };
        }
        self.count("dropped");
    }

    fn free(&mut self, at: usize) {
        let range = self.any_range();
        let mind = &mut self.minds[at];
        let result = mind.space.madvise(addr(range.start), (range.end - range.start) * PAGE, Advice::Free);
        for (_, page) in mind.pages.range_mut(range) {
            page.lazy |= page.value != 0 && !page.locked;
        }
        if let Err(error) = result {
            self.note("not freed", error);
        }
    }

    fn advise(&mut self, at: usize, advice: Advice) {
        let range = self.any_range();
        let len = (range.end - range.start) * PAGE;
        if let Err(error) = self.minds[at].space.madvise(addr(range.start), len, advice) {
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
        let len = (range.end - range.start) * PAGE;
        match mind.space.mprotect(addr(range.start), len, protection, false) {
            Ok(()) => mind.pages.range_mut(range).for_each(|(_, page)| page.writable = writable),
            Err(error) => {
                self.note("not protected", error);
                self.match_mappings(at);
            }
        }
    }

    fn lock(&mut self, at: usize) {
        let locked: usize =
            self.minds.iter().map(|mind| mind.pages.values().filter(|page| page.locked).count()).sum();
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
        let Some(first) = self.minds[at].pages.iter().find(|(_, page)| page.locked).map(|(&at, _)| at) else {
            return;
        };
        let mind = &mut self.minds[at];
        match mind.space.munlock(addr(first), PAGE) {
            Ok(()) => mind.pages.get_mut(&first).expect("it is there").locked = false,
            Err(error) => self.note("not unlocked", error),
        }
    }

    fn fork(&mut self, at: usize) {
        if self.minds.len() == SPACES {
            return;
        }
        let mind = &self.minds[at];
        match mind.space.fork() {
            Ok(space) => {
                let child = |(&at, page): (&u64, &Page)| (at, Page { locked: false, ..*page });
                let pages = mind.pages.iter().map(child).collect();
                self.minds.push(Mind { space, pages });
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

    fn change_folios(&mut self, at: usize) {
        match self.random.below(4) {
            0 => {
                let orders = [0b100, 0b1_0000, 0b10_0000_0000, 0b10_0001_0100, 0];
                let bits = self.random.pick(&orders);
                let word = self.random.pick(&[SizeEnabled::Always, SizeEnabled::Madvise]);
                self.machine.memory().spaces().huge().change(|policy| {
                    let none = policy.with_sizes(OrderSet::from_bits(!0), SizeEnabled::Never);
                    none.with_sizes(OrderSet::from_bits(bits), word)
                });
            }
            1 => {
                let advice = self.random.pick(&[Advice::HugePage, Advice::NoHugePage]);
                self.advise(at, advice);
            }
            2 => {
                let block = self.random.below(ARENA * PAGE / MIB2);
                let result =
                    self.minds[at].space.madvise(VirtAddr(BASE + block * MIB2), MIB2, Advice::Collapse);
                match result {
                    Ok(()) => self.count("collapsed"),
                    Err(error) => self.note("not collapsed", error),
                }
            }
            _ => drop(self.machine.memory().khugepaged_step()),
        }
    }

    fn change_memcgs(&mut self, at: usize) {
        let memcgs = self.machine.memory().memcgs();
        let action = self.random.below(8);
        if action == 0 && self.memcgs.len() < GROUPS {
            let parent = self.memcgs.last().copied().filter(|_| self.random.chance(30));
            self.next_value += 1;
            let name = format!("g{}", self.next_value);
            match memcgs.create(parent.unwrap_or(MemcgId::ROOT), &name) {
                Ok(memcg) => self.memcgs.push(memcg),
                Err(_) => self.count("no memcg"),
            }
            return;
        }
        if self.memcgs.is_empty() {
            return;
        }
        let nth = self.random.below(self.memcgs.len() as u64) as usize;
        let memcg = self.memcgs[nth];
        let pages = self.random.below(1500) * PAGE;
        let limited = self.random.chance(70);
        let set = |limit, bytes: u64| {
            let _ = memcgs.set(memcg, limit, limited.then_some(bytes)).expect("the memcg is there");
        };
        match action {
            1 => set(Limit::Max, pages + 300 * PAGE),
            2 => set(Limit::High, pages + 800 * PAGE),
            3 => set(Limit::Low, pages / 4),
            4 => set(Limit::SwapMax, pages + 500 * PAGE),
            5 => {
                self.machine.memory().reclaim(memcg, 1 + pages / PAGE / 8);
            }
            6 => {
                let memcg = if self.random.chance(70) { memcg } else { MemcgId::ROOT };
                self.minds[at].space.set_memcg(memcg).expect("the memcg is there");
                self.count("moved to a memcg");
            }
            7 if memcgs.remove(memcg).is_ok() => {
                self.memcgs.swap_remove(nth);
                self.count("memcg removed");
            }
            _ => {}
        }
    }

    fn change_devices(&mut self) {
        match self.devices.change(self.machine, &mut self.random) {
            Ok(what) | Err(what) => self.count(what),
        }
    }

    fn change_luck(&mut self) {
        self.failing = !self.failing && self.random.chance(70);
        let plan = if self.failing {
            let class = self.random.pick(&[FaultClass::DeviceRead, FaultClass::DeviceWrite]);
            FaultPlan::seeded(self.random.next(), self.habits.errors).at(FaultAim::Class(class))
        } else {
            FaultPlan::OFF
        };
        self.machine.memory().frames().faults().set(plan);
    }

    /// Devices work from now on.
    pub(crate) fn end_failures(&mut self) {
        self.failing = false;
        self.machine.memory().frames().faults().set(FaultPlan::OFF);
    }

    /// Reads every page. Limits go first, so that there is memory for it.
    pub(crate) fn check_all(&mut self, cpu: &Vcpu) {
        let memcgs = self.machine.memory().memcgs();
        for &memcg in &self.memcgs {
            for limit in [Limit::Max, Limit::High, Limit::SwapMax] {
                let _ = memcgs.set(memcg, limit, None).expect("the memcg is there");
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
            self.memcgs.retain(|&memcg| memcgs.remove(memcg).is_err());
        }
        (self.devices, self.tally)
    }
}

/// The address of a page.
pub(crate) fn addr(number: u64) -> VirtAddr {
    VirtAddr(BASE + number * PAGE)
}
