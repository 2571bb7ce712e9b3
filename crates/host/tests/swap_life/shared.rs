//! Threads of one program: they share a space, its tables, its folios and its mappings, and each knows what
//! its own pages hold.

use crate::common::*;
use crate::devices::Devices;
use crate::life::Habits;
use crate::model::{ARENA, BASE, Mind, Page, addr, any_range, bytes};
use quire_frame::{FailAim, FailClass, FailPlan};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pages that one thread locks at once.
const LOCKED: usize = 24;
/// Tries of a write to a page that another thread has made PROT_NONE for the moment.
const TRIES: u32 = 10_000;

/// One thread. Every page whose number leaves `number` when it is divided by `threads` is its own.
pub(crate) struct Sharer<'m> {
    machine: &'m Machine,
    /// The space, and this thread's pages.
    mind: Mind<'m>,
    habits: Habits,
    number: u64,
    threads: u64,
    random: Random,
    /// Where the program may be charged.
    memcgs: Vec<MemcgId>,
    /// What was forked off last, and what this thread's pages held then.
    child: Option<Mind<'m>>,
    pub(crate) devices: Devices,
    next_value: u64,
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl<'m> Sharer<'m> {
    /// Thread `number` of `threads`. `first_value` is the first of 2^40 values that no other one uses.
    pub(crate) fn new(
        machine: &'m Machine,
        space: Arc<HostSpace<'m>>,
        habits: Habits,
        (devices, memcgs): (Devices, Vec<MemcgId>),
        (number, threads): (usize, usize),
        (random, first_value): (Random, u64),
    ) -> Self {
        let (number, threads) = (number as u64, threads as u64);
        let pages = (number..ARENA).step_by(threads as usize).map(|at| (at, Page::NEW)).collect();
        Self {
            machine,
            mind: Mind { space, pages },
            habits,
            number,
            threads,
            random,
            memcgs,
            child: None,
            devices,
            next_value: first_value,
            tally: BTreeMap::new(),
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
            740..755 => self.forget(),
            755..775 => self.free(),
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

    /// The place of a page of this thread's, mapped or not.
    fn any_place(&mut self) -> u64 {
        self.random.below(ARENA / self.threads) * self.threads + self.number
    }

    /// Any pages, of any thread.
    fn any_range(&mut self) -> Range<u64> {
        any_range(&mut self.random, &[1, 16, 64, 640])
    }

    /// Does something with one page, or with a few in a row.
    fn some(&mut self, act: impl Fn(&mut Self, u64)) {
        let Some(first) = self.mind.any_page(&mut self.random) else { return };
        let count = self.random.pick(&[1, 1, 1, 4, 32]);
        for at in (first..ARENA).step_by(self.threads as usize).take(count) {
            if self.mind.pages.contains_key(&at) {
                act(self, at);
            }
        }
    }

    fn write(&mut self, cpu: &Vcpu, at: u64) {
        self.next_value += 1;
        let (value, full) = (self.next_value, self.random.chance(6));
        for _ in 0..TRIES {
            match self.mind.write(cpu, at, value, full) {
                Ok(()) => return self.count("written"),
                Err(DENIED) => {
                    // Another thread has made it PROT_NONE, or could not undo that.
                    let _ = self.mind.space.mprotect(addr(at), PAGE, RW, false);
                    self.count("denied");
                }
                Err(error) => return self.refused(error),
            }
        }
        panic!("page {at} cannot be written");
    }

    fn check(&mut self, cpu: &Vcpu, at: u64) {
        match self.mind.check(cpu, at) {
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
        if self.mind.map(at..at + 1).is_err() {
            self.lost(at);
        }
    }

    fn unmap(&mut self) {
        let at = self.any_place();
        if self.mind.unmap(at..at + 1).is_err() {
            self.count("not unmapped");
        }
    }

    /// A call failed that may have unmapped what was there before, as in Linux.
    fn lost(&mut self, at: u64) {
        self.count("no mapping");
        let mut mapped = false;
        self.mind.space.mappings().for_each(|mapping| mapped |= mapping.range.contains(addr(at)));
        if !mapped {
            self.mind.pages.remove(&at);
        }
    }

    fn forget(&mut self) {
        let Some(at) = self.mind.any_page(&mut self.random) else { return };
        self.mind.forget(at..at + 1);
        self.count("dropped");
    }

    fn free(&mut self) {
        let Some(at) = self.mind.any_page(&mut self.random) else { return };
        let done = self.mind.free(at..at + 1);
        assert!(done.is_err() || !self.mind.page(at).locked, "what is locked is not given free");
        self.count("dropped");
    }

    /// Calls without effect on contents. Others unmap pages of the range.
    fn advise(&mut self, advice: Advice) {
        let range = self.any_range();
        let _ = self.mind.advise(&range, advice);
        self.count("advice");
    }

    /// Moves a page.
    fn remap(&mut self) {
        let Some(old) = self.mind.any_page(&mut self.random) else { return };
        let new = self.any_place();
        if old == new || self.mind.pages[&old].locked {
            return;
        }
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        match self.mind.space.mremap(addr(old), PAGE, PAGE, flags, addr(new)) {
            Ok(_) => {
                let page = self.mind.pages.remove(&old).expect("it was there");
                self.mind.pages.insert(new, page);
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
        for protection in [READ, RW] {
            let _ = self.mind.space.mprotect(addr(range.start), bytes(&range), protection, false);
        }
        self.count("protected");
    }

    fn lock(&mut self) {
        let locked = self.mind.locked();
        let Some(at) = self.mind.any_page(&mut self.random).filter(|_| locked < LOCKED) else { return };
        let on_fault = self.random.chance(30);
        let done = self.mind.space.mlock(addr(at), PAGE, on_fault);
        // Where it fails the mapping may be locked already.
        let locked = done.is_ok() || self.is_locked(at);
        self.mind.page(at).locked |= locked;
        self.count(match (done.is_ok(), locked) {
            (true, _) => "locked",
            (false, true) => "locked and not there",
            (false, false) => "not locked",
        });
    }

    fn is_locked(&self, at: u64) -> bool {
        let mut locked = false;
        self.mind.space.mappings().for_each(|mapping| {
            locked |= mapping.range.contains(addr(at)) && mapping.flags.contains(VmFlags::LOCKED);
        });
        locked
    }

    fn unlock(&mut self) {
        let _ = self.mind.unlock();
    }

    fn fork(&mut self) {
        match self.mind.fork() {
            Ok(child) => {
                self.child = Some(child);
                self.count("forked");
            }
            Err(_) => self.count("not forked"),
        }
    }

    /// The child, whose only thread is this one, has what this thread's pages held at the fork.
    fn use_child(&mut self, cpu: &Vcpu) {
        let Some(mut child) = self.child.take() else { return };
        let first = self.any_place();
        let some: Vec<u64> = child.pages.range(first..).map(|(&at, _)| at).take(16).collect();
        for at in some {
            self.next_value += 1;
            let result = if self.random.chance(30) {
                // It may have been forked while another thread had it PROT_NONE.
                let _ = child.space.mprotect(addr(at), PAGE, RW, false);
                child.write(cpu, at, self.next_value, false)
            } else {
                child.check(cpu, at)
            };
            match result {
                Ok(()) => self.count("used by a child"),
                Err(DENIED) => return self.count("a child could not be allowed to write"),
                Err(error) => return self.refused(error),
            }
        }
        self.child = Some(child);
    }

    fn change_folios(&mut self) {
        let block = self.random.below(ARENA * PAGE / MIB2);
        let advice = self.random.pick(&[Advice::HugePage, Advice::NoHugePage, Advice::Collapse]);
        match self.mind.space.madvise(VirtAddr(BASE + block * MIB2), MIB2, advice) {
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
            0 => self.mind.space.set_memcg(memcg).expect("the memcg is there"),
            1 => drop(memcgs.files().set(memcg, Limit::Max, Some(pages * PAGE)).expect("the memcg is there")),
            _ => drop(self.machine.memory().reclaim(memcg, pages / 8)),
        }
        self.count("memcgs changed");
    }

    fn change_luck(&mut self) {
        let fail_points = self.machine.memory().frames().fail_points();
        let class = self.random.pick(&[FailClass::DeviceRead, FailClass::DeviceWrite]);
        let plan = FailPlan::seeded(self.random.next(), self.habits.errors).at(FailAim::Class(class));
        fail_points.set(if self.random.chance(60) { plan } else { FailPlan::OFF });
    }

    /// Reads all pages.
    pub(crate) fn check_all(&mut self, cpu: &Vcpu) {
        let all: Vec<u64> = self.mind.pages.keys().copied().collect();
        all.into_iter().for_each(|at| self.check(cpu, at));
    }

    /// Ends the thread. Returns the devices.
    pub(crate) fn die(self) -> (Devices, BTreeMap<&'static str, u64>) {
        (self.devices, self.tally)
    }
}
