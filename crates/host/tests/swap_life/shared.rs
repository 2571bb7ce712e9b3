//! Threads of one program: they share a space, its tables, its folios and its mappings, and each knows what
//! its own pages hold.

use crate::common::{AccessResult, DENIED, HostSpace, MIB2, PAGE, READ, RW, Random};
use crate::devices::Devices;
use crate::life::{ARENA, BASE, Habits, addr};
use crate::model::{Page, Pages, WORDS};
use quire_arch::VirtAddr;
use quire_frame::{FaultAim, FaultClass, FaultPlan};
use quire_host::{AccessError, Machine, Vcpu};
use quire_mm::{Advice, FaultError, Limit, MapFlags, MapRequest, MemcgId, RemapFlags, VmFlags};
use std::collections::BTreeMap;
use std::ops::Range;

/// Pages that one thread locks at once.
const LOCKED: usize = 24;
/// Tries of a write to a page that another thread has made PROT_NONE for the moment.
const TRIES: u32 = 10_000;

/// One thread. Every page whose number leaves `number` when it is divided by `threads` is its own.
pub(crate) struct Sharer<'s, 'm> {
    machine: &'m Machine,
    space: &'s HostSpace<'m>,
    habits: Habits,
    number: u64,
    threads: u64,
    random: Random,
    pages: Pages,
    /// Where the program may be charged.
    memcgs: Vec<MemcgId>,
    /// What was forked off last, and what this thread's pages held then.
    child: Option<(HostSpace<'m>, Pages)>,
    pub(crate) devices: Devices,
    next_value: u64,
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

/// Maps what the threads share.
pub(crate) fn map_all(space: &HostSpace<'_>) {
    let request = MapRequest::anonymous(ARENA * PAGE, RW).at(VirtAddr(BASE), MapFlags::FIXED);
    space.mmap(&request).expect("the space is empty");
}

impl<'s, 'm> Sharer<'s, 'm> {
    /// Thread `number` of `threads`. `first_value` is the first of 2^40 values that no other one uses.
    pub(crate) fn new(
        machine: &'m Machine,
        space: &'s HostSpace<'m>,
        habits: Habits,
        (devices, memcgs): (Devices, Vec<MemcgId>),
        (number, threads): (usize, usize),
        (random, first_value): (Random, u64),
    ) -> Self {
        let (number, threads) = (number as u64, threads as u64);
        let pages = (number..ARENA).step_by(threads as usize).map(|at| (at, Page::NEW)).collect();
        let tally = BTreeMap::new();
        let next_value = first_value;
        Self {
            machine,
            space,
            habits,
            number,
            threads,
            random,
            pages,
            memcgs,
            child: None,
            devices,
            next_value,
            tally,
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// `count` operations.
    pub(crate) fn live(&mut self, cpu: &Vcpu, count: u64) {
        (0..count).for_each(|_| self.act(cpu));
    }

    fn act(&mut self, cpu: &Vcpu) {
        match self.random.below(1000) {
            0..380 => self.some(|sharer, at| sharer.write(cpu, at)),
            380..720 => self.some(|sharer, at| sharer.check(cpu, at)),
            720..735 => self.map(),
            735..740 => self.unmap(),
            740..755 => self.forget(Advice::DontNeedLocked),
            755..775 => self.forget(Advice::Free),
            775..805 => self.advise(Advice::PageOut),
            805..812 => self.advise(Advice::Cold),
            812..820 => self.advise(Advice::WillNeed),
            820..845 => self.remap(),
            845..860 => self.forbid_for_a_moment(),
            860..870 => self.lock(),
            870..880 => self.unlock(),
            880..886 => self.fork(),
            886..900 => self.use_child(cpu),
            900..904 => self.child = None,
            904..914 => drop(self.machine.memory().kswapd_step()),
            914..919 => {
                let pages = 1 + self.random.below(256);
                self.machine.memory().reclaim(MemcgId::ROOT, pages);
            }
            919..934 if self.habits.large => self.change_folios(),
            934..935 if self.habits.swapoff && !self.devices.is_empty() => {
                match self.devices.change(self.machine, &mut self.random) {
                    Ok(what) | Err(what) => self.count(what),
                }
            }
            935..938 if self.habits.errors > 0 && self.number == 0 => self.change_luck(),
            938..942 if self.habits.memcgs => self.change_memcgs(),
            _ => {}
        }
    }

    /// A page of this thread's that is mapped.
    fn any(&mut self) -> Option<u64> {
        let from = self.random.below(ARENA);
        self.pages.range(from..).chain(self.pages.range(..from)).next().map(|(&at, _)| at)
    }

    /// The place of a page of this thread's, mapped or not.
    fn any_place(&mut self) -> u64 {
        self.random.below(ARENA / self.threads) * self.threads + self.number
    }

    /// Any pages, of any thread.
    fn any_range(&mut self) -> Range<u64> {
        let longest = self.random.pick(&[1, 16, 64, 640]);
        let len = 1 + self.random.below(longest);
        let first = self.random.below(ARENA - len);
        first..first + len
    }

    /// Does something with one page, or with a few in a row.
    fn some(&mut self, act: impl Fn(&mut Self, u64)) {
        let Some(first) = self.any() else { return };
        let count = self.random.pick(&[1, 1, 1, 4, 32]);
        for at in (first..ARENA).step_by(self.threads as usize).take(count) {
            if self.pages.contains_key(&at) {
                act(self, at);
            }
        }
    }

    fn write(&mut self, cpu: &Vcpu, at: u64) {
        self.next_value += 1;
        let (value, full) = (self.next_value, self.random.chance(6));
        for _ in 0..TRIES {
            match write_page(cpu, self.space, at, value, full) {
                Ok(()) => {
                    let page = self.pages.get_mut(&at).expect("the caller looked");
                    *page = Page { value, full, lazy: false, ..*page };
                    return self.count("written");
                }
                Err(DENIED) => {
                    // Another thread has made it PROT_NONE, or could not undo that.
                    let _ = self.space.mprotect(addr(at), PAGE, RW, false);
                    self.count("denied");
                }
                Err(error) => {
                    // Perhaps half of it was written.
                    self.space.madvise(addr(at), PAGE, Advice::DontNeedLocked).expect("this cannot fail");
                    let page = self.pages.get_mut(&at).expect("the caller looked");
                    *page = Page { locked: page.locked, ..Page::NEW };
                    return self.refused(error);
                }
            }
        }
        panic!("page {at} cannot be written");
    }

    fn check(&mut self, cpu: &Vcpu, at: u64) {
        let page = self.pages.get_mut(&at).expect("the caller looked");
        match check_page(cpu, self.space, at, page) {
            Ok(()) => self.count("read"),
            Err(error) => self.refused(error),
        }
    }

    fn refused(&mut self, error: AccessError<FaultError>) {
        match error {
            AccessError::Fault(FaultError::Bus) if self.habits.errors > 0 => self.count("SIGBUS"),
            AccessError::Fault(FaultError::OutOfMemory(_)) => {
                self.child = None;
                self.count("out of memory");
            }
            other => panic!("{other}"),
        }
    }

    fn map(&mut self) {
        let at = self.any_place();
        let request = MapRequest::anonymous(PAGE, RW).at(addr(at), MapFlags::FIXED);
        match self.space.mmap(&request) {
            Ok(_) => drop(self.pages.insert(at, Page::NEW)),
            Err(_) => self.lost(at),
        }
    }

    fn unmap(&mut self) {
        let at = self.any_place();
        match self.space.munmap(addr(at), PAGE) {
            Ok(()) => drop(self.pages.remove(&at)),
            Err(_) => self.count("not unmapped"),
        }
    }

    /// A call failed that may have unmapped what was there before, as in Linux.
    fn lost(&mut self, at: u64) {
        self.count("no mapping");
        let mut mapped = false;
        self.space.for_each_mapping(|mapping| mapped |= mapping.range.contains(addr(at)));
        if !mapped {
            self.pages.remove(&at);
        }
    }

    fn forget(&mut self, advice: Advice) {
        let Some(at) = self.any() else { return };
        let done = self.space.madvise(addr(at), PAGE, advice);
        let page = self.pages.get_mut(&at).expect("it is there");
        if advice == Advice::Free {
            assert!(done.is_err() || !page.locked, "what is locked is not given free");
            page.lazy |= page.value != 0 && !page.locked;
        } else {
            done.expect("dropping a page cannot fail");
            *page = Page { locked: page.locked, ..Page::NEW };
        }
        self.count("dropped");
    }

    /// Calls without effect on contents. Others unmap pages of the range.
    fn advise(&mut self, advice: Advice) {
        let range = self.any_range();
        let _ = self.space.madvise(addr(range.start), (range.end - range.start) * PAGE, advice);
        self.count("advice");
    }

    /// Moves a page.
    fn remap(&mut self) {
        let Some(old) = self.any() else { return };
        let new = self.any_place();
        if old == new || self.pages[&old].locked {
            return;
        }
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        match self.space.mremap(addr(old), PAGE, PAGE, flags, addr(new)) {
            Ok(_) => {
                let page = self.pages.remove(&old).expect("it was there");
                self.pages.insert(new, page);
                self.count("moved");
            }
            Err(_) => {
                self.lost(old);
                self.lost(new);
            }
        }
    }

    /// Makes a range PROT_NONE for all threads, and writable again.
    fn forbid_for_a_moment(&mut self) {
        let range = self.any_range();
        let len = (range.end - range.start) * PAGE;
        for protection in [READ, RW] {
            let _ = self.space.mprotect(addr(range.start), len, protection, false);
        }
        self.count("protected");
    }

    fn lock(&mut self) {
        let locked = self.pages.values().filter(|page| page.locked).count();
        let Some(at) = self.any().filter(|_| locked < LOCKED) else { return };
        let on_fault = self.random.chance(30);
        let done = self.space.mlock(addr(at), PAGE, on_fault);
        // Where it fails the mapping may be locked already.
        let locked = done.is_ok() || self.is_locked(at);
        self.pages.get_mut(&at).expect("it is there").locked |= locked;
        self.count(match (done.is_ok(), locked) {
            (true, _) => "locked",
            (false, true) => "locked and not there",
            (false, false) => "not locked",
        });
    }

    fn is_locked(&self, at: u64) -> bool {
        let mut locked = false;
        self.space.for_each_mapping(|mapping| {
            locked |= mapping.range.contains(addr(at)) && mapping.flags.contains(VmFlags::LOCKED);
        });
        locked
    }

    fn unlock(&mut self) {
        let Some(at) = self.pages.iter().find(|(_, page)| page.locked).map(|(&at, _)| at) else { return };
        if self.space.munlock(addr(at), PAGE).is_ok() {
            self.pages.get_mut(&at).expect("it is there").locked = false;
        }
    }

    fn fork(&mut self) {
        match self.space.fork() {
            Ok(child) => {
                let unlocked = |(&at, page): (&u64, &Page)| (at, Page { locked: false, ..*page });
                self.child = Some((child, self.pages.iter().map(unlocked).collect()));
                self.count("forked");
            }
            Err(_) => self.count("not forked"),
        }
    }

    /// The child, whose only thread is this one, has what this thread's pages held at the fork.
    fn use_child(&mut self, cpu: &Vcpu) {
        let Some((space, mut pages)) = self.child.take() else { return };
        let first = self.any_place();
        for (&at, page) in pages.range_mut(first..).take(16) {
            self.next_value += 1;
            let value = self.next_value;
            let result = if self.random.chance(30) {
                // It may have been forked while another thread had it PROT_NONE.
                let _ = space.mprotect(addr(at), PAGE, RW, false);
                write_page(cpu, &space, at, value, false)
                    .map(|()| *page = Page { value, full: false, lazy: false, ..*page })
            } else {
                check_page(cpu, &space, at, page)
            };
            match result {
                Ok(()) => self.count("used by a child"),
                // It may be half written: this was its last write.
                Err(DENIED) => return self.count("a child could not be allowed to write"),
                Err(error) => return self.refused(error),
            }
        }
        self.child = Some((space, pages));
    }

    fn change_folios(&mut self) {
        let block = self.random.below(ARENA * PAGE / MIB2);
        let advice = self.random.pick(&[Advice::HugePage, Advice::NoHugePage, Advice::Collapse]);
        match self.space.madvise(VirtAddr(BASE + block * MIB2), MIB2, advice) {
            Ok(()) => self.count("folios changed"),
            Err(_) => self.count("folios not changed"),
        }
        if self.random.chance(20) {
            let _ = self.machine.memory().khugepaged_step();
        }
    }

    /// Moves the program, with all its threads, to another memcg, changes a limit, or reclaims.
    fn change_memcgs(&mut self) {
        let memcgs = self.machine.memory().memcgs();
        let memcg = self.random.pick(&self.memcgs);
        let pages = ARENA / 8 + self.random.below(ARENA / 4);
        match self.random.below(3) {
            0 => self.space.set_memcg(memcg).expect("the memcg is there"),
            1 => drop(memcgs.set(memcg, Limit::Max, Some(pages * PAGE)).expect("the memcg is there")),
            _ => drop(self.machine.memory().reclaim(memcg, pages / 8)),
        }
        self.count("memcgs changed");
    }

    fn change_luck(&mut self) {
        let faults = self.machine.memory().frames().faults();
        let class = self.random.pick(&[FaultClass::DeviceRead, FaultClass::DeviceWrite]);
        let plan = FaultPlan::seeded(self.random.next(), self.habits.errors).at(FaultAim::Class(class));
        faults.set(if self.random.chance(60) { plan } else { FaultPlan::OFF });
    }

    /// Reads all pages.
    pub(crate) fn check_all(&mut self, cpu: &Vcpu) {
        let all: Vec<u64> = self.pages.keys().copied().collect();
        all.into_iter().for_each(|at| self.check(cpu, at));
    }

    /// Ends the thread. Returns the devices.
    pub(crate) fn die(self) -> (Devices, BTreeMap<&'static str, u64>) {
        (self.devices, self.tally)
    }
}

fn write_page(cpu: &Vcpu, space: &HostSpace<'_>, at: u64, value: u64, full: bool) -> AccessResult<()> {
    let program = cpu.program(space);
    if full {
        return program.write(addr(at), &Page::bytes(value));
    }
    WORDS
        .iter()
        .try_for_each(|&offset| program.write_u64(VirtAddr(addr(at).0 + offset), Page::word(value, offset)))
}

/// Reads a page, which must hold what the model says.
fn check_page(cpu: &Vcpu, space: &HostSpace<'_>, at: u64, page: &mut Page) -> AccessResult<()> {
    let program = cpu.program(space);
    for offset in WORDS {
        match program.read_u64(VirtAddr(addr(at).0 + offset))? {
            0 if page.lazy => *page = Page { value: 0, full: false, lazy: false, ..*page },
            seen => assert_eq!(seen, Page::word(page.value, offset), "page {at} at {offset}: {page:?}"),
        }
    }
    if page.full && !page.lazy {
        let mut bytes = vec![0; PAGE as usize];
        program.read(addr(at), &mut bytes)?;
        assert!(bytes == Page::bytes(page.value), "page {at}: {page:?}");
    }
    Ok(())
}
