//! One program on both sides.

use crate::compare::compare;
use crate::confirmation::{Belief, Confirmation};
use crate::coverage::Coverage;
use crate::error::DiffError;
use crate::known::KnownDifference;
use crate::linux::{Effort, Host, Interference, Oracle, Start, merges};
use crate::observation::{Observation, Wanted, first_fit};
use crate::past::{Past, Swap};
use crate::program::names::{MAP_32BIT, MAP_FIXED, MAP_FIXED_NOREPLACE};
use crate::program::{Call, MOST_PROCESSES, Op, Outcome, Program, Store, Trait, Word};
use crate::quire::Processes;
use crate::standing::Standing;
use crate::taken;
use crate::verdict::{Mismatch, Verdict};
use quire_arch::PAGE_SIZE;
use quire_host::{HostConfig, Machine, Vcpu};
use quire_mm::{
    InUse, MemoryConfig, Techniques,
    swap::{CompressedRam, Lz4, SwapOnOptions},
};

/// RAM of the machine. Programs populate a few windows at most, in each of their processes.
const RAM: u64 = 128 << 20;

/// What both sides have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// The techniques of the machine.
    pub techniques: Techniques,
    /// Size of the swap device of each side in bytes: on the host there is a [`HostSwap`](crate::HostSwap) of
    /// that size.
    pub swap: Option<u64>,
    /// Where the files of all programs are, instead of where each one says.
    pub files: Option<Store>,
}

/// Gives the machine a compressed device like the host's.
fn add_swap(machine: &Machine, bytes: u64) -> Result<(), DiffError> {
    let disk = CompressedRam::new(machine.memory().frames(), bytes / PAGE_SIZE, Lz4)
        .map_err(|error| DiffError::Swap(error.to_string()))?;
    let added = machine.memory().swapon(disk, SwapOnOptions::default());
    added.map(|_| ()).map_err(|error| DiffError::Swap(error.to_string()))
}

/// A process of Linux and a machine, for one program after the other.
#[derive(Debug)]
pub struct SideBySide {
    oracle: Oracle,
    machine: Machine,
    cpu: Vcpu,
    /// What of the machine is in use without any program.
    at_rest: InUse,
    /// Slots of its swap device that are free then.
    free_slots: u64,
    setup: Setup,
    host: Host,
    /// The host's settings that both sides have, and what Linux had done on its own account before the last
    /// run.
    interference: Interference,
    linux: Observation,
    quire: Observation,
}

impl SideBySide {
    /// Starts both sides.
    ///
    /// # Errors
    ///
    /// [`DiffError`].
    pub fn new(setup: Setup) -> Result<Self, DiffError> {
        Self::on(Host::default(), setup)
    }

    /// The same, for a host whose settings are elsewhere.
    fn on(host: Host, setup: Setup) -> Result<Self, DiffError> {
        let Setup { techniques, swap, .. } = setup;
        let interference = Interference::now(&host);
        if interference.settings.grants_what_there_is() {
            return Err(DiffError::StrictOvercommit);
        }
        let oracle = Oracle::start()?;
        let overcommit = oracle.origin().overcommit;
        let config =
            MemoryConfig { min_free_kib: Some(0), overcommit, techniques, ..MemoryConfig::default() };
        // Audited after each program, with the finding as a result.
        let ram = HostConfig { audit_at_end: false, ..HostConfig::with_ram(RAM).paranoid() };
        let machine = Machine::new(&ram, config).map_err(DiffError::Machine)?;
        interference.settings.set_policy(machine.memory());
        let cpu = machine.vcpu(0).map_err(DiffError::Cpu)?;
        if let Some(bytes) = swap {
            add_swap(&machine, bytes)?;
        }
        let free_slots = machine.memory().swap().devices().free_slots();
        let at_rest = machine.memory().in_use();
        Ok(Self {
            oracle,
            machine,
            cpu,
            at_rest,
            free_slots,
            setup,
            host,
            interference,
            linux: Observation::default(),
            quire: Observation::default(),
        })
    }

    /// Gives both sides the settings that the host has now.
    fn follow_host(&mut self) -> Result<(), DiffError> {
        let now = Interference::now(&self.host);
        if now.settings.needs_new_sides(&self.interference.settings) {
            *self = Self::on(self.host.clone(), self.setup)?;
            return Ok(());
        }
        if now.settings != self.interference.settings {
            now.settings.set_policy(self.machine.memory());
        }
        self.interference = now;
        Ok(())
    }

    /// Runs a program on both sides until they diverge. A difference has to show again each time that the
    /// program is repeated. Runs in which Linux did something on its own account, for any process, do not
    /// count as long as there are not too many of them; those in which a setting of the host was changed
    /// never do.
    ///
    /// # Errors
    ///
    /// [`DiffError`]; what differs is no error.
    pub fn run(
        &mut self,
        program: &Program,
        effort: Effort,
        belief: Belief,
        coverage: &mut Coverage,
    ) -> Result<Verdict, DiffError> {
        let mut confirmed = Confirmation::new(belief);
        self.follow_host()?;
        let mut verdict = self.run_once(program, effort, coverage)?;
        loop {
            let now = Interference::now(&self.host);
            let disturbed = now.disturbs_since(&self.interference);
            let told = now.told_since(&self.interference);
            if !confirmed.wants_another(&mut verdict, disturbed, &told) {
                return Ok(verdict);
            }
            self.follow_host()?;
            // What is run again is no new coverage.
            verdict = self.run_once(program, effort, &mut Coverage::default())?;
        }
    }

    fn run_once(
        &mut self,
        program: &Program,
        effort: Effort,
        coverage: &mut Coverage,
    ) -> Result<Verdict, DiffError> {
        let mut verdict = Verdict::default();
        let settings = &self.interference.settings;
        let swap = match self.setup.swap {
            Some(_) => Swap::Compared,
            None if settings.swaps() => Swap::Foreign,
            None => Swap::None,
        };
        let store = self.oracle.origin().store_for(self.setup.files.unwrap_or(program.store));
        let mut steps = self.oracle.run((program, store), effort, settings);
        let start = steps.origin().clone();
        let processes = Processes::new(&self.machine, &self.cpu, (&start, store))?;
        let past = Past::new(swap, store);
        let mut course = Course::new(&start, processes, past);
        for (step, op) in program.ops.iter().enumerate() {
            let (outcome, wanted) = steps.next(op, &mut self.linux)?;
            verdict.outcomes.push(outcome);
            if outcome == Outcome::NotMade {
                verdict.not_made += 1;
                verdict.merging += u64::from(merges(settings, op));
                verdict.segments += u64::from(op.call.has(Trait::Ipc) && !start.has_ipc);
                continue;
            }
            let args = op.args.map(|word| match word {
                Word::Exact(value) => value,
                Word::Window(offset) => program.window.wrapping_add(offset),
                Word::Area(id, offset) => steps.area(id).unwrap_or(0).wrapping_add(offset),
                Word::Base(base, offset) => start.base(base).wrapping_add(offset),
                Word::Segment(id) => steps.area(id).unwrap_or(0).wrapping_sub(1),
            });
            let made = Made { op, args, outcome };
            match course.step(&made, wanted, &self.linux, &mut self.quire, coverage) {
                Compared::Alike => verdict.compared += 1,
                Compared::Known => break,
                Compared::Differs(what) => {
                    verdict.mismatch = Some(Mismatch { step, what });
                    break;
                }
            }
        }
        drop(steps);
        let good = verdict.mismatch.is_none();
        let Course { processes, past, .. } = course;
        // With the processes alive, for their counts; and without them, for what they leave behind.
        let alive = if good { self.audit() } else { None };
        drop(processes);
        if good {
            let found = alive.or_else(|| self.check());
            verdict.mismatch = found.map(|what| Mismatch { step: program.ops.len(), what });
        }
        verdict.known = past.into_counts();
        Ok(verdict)
    }

    /// What the auditor finds.
    fn audit(&self) -> Option<String> {
        let findings = self.machine.audit();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        (!lines.is_empty()).then(|| format!("the audit found: {}", lines.join("; ")))
    }

    /// Checks the machine when no program uses it.
    fn check(&self) -> Option<String> {
        self.audit().or_else(|| {
            // A device keeps some of what it needed for its tables, which the audit has counted.
            let slots = self.machine.memory().swap().devices().free_slots();
            if self.free_slots > 0 {
                return (slots != self.free_slots)
                    .then(|| format!("{slots} slots are free, and {} without any program", self.free_slots));
            }
            let now = self.machine.memory().in_use();
            (now != self.at_rest).then(|| {
                format!("{:?} frames and objects are in use, and {:?} without any program", now, self.at_rest)
            })
        })
    }
}

/// An operation that Linux made.
struct Made<'p> {
    op: &'p Op,
    args: [u64; 6],
    outcome: Outcome,
}

/// The outcome of an operation.
enum Compared {
    /// The same on both sides.
    Alike,
    /// A known difference, after which the sides are no longer alike.
    Known,
    /// Something else, in words.
    Differs(String),
}

/// A program in progress on Quire.
struct Course<'m> {
    start: &'m Start,
    processes: Processes<'m>,
    past: Past,
    /// What each process looked like after its last operation. One that was forked looks like its parent.
    before: Vec<Observation>,
}

impl<'m> Course<'m> {
    fn new(start: &'m Start, processes: Processes<'m>, past: Past) -> Self {
        let before = vec![Observation::default(); MOST_PROCESSES as usize];
        Self { start, processes, past, before }
    }

    /// Makes an operation on Quire and compares it with the observation on Linux. `quire` is a buffer for
    /// the observation here.
    fn step(
        &mut self,
        made: &Made<'_>,
        wanted: Option<Wanted>,
        linux: &Observation,
        quire: &mut Observation,
        coverage: &mut Coverage,
    ) -> Compared {
        let Made { op: Op { call, process, .. }, args, outcome } = *made;
        let regions = &self.before[*process as usize].regions;
        if self.past.parts_ways(*call, args, regions).is_some() {
            return Compared::Known;
        }
        let standing = self.processes.space(*process).map(Standing::of);
        let here = self.processes.make(*process, *call, args);
        let Some(here) = self.placed_low(made, here) else { return Compared::Known };
        let before = &self.before[*process as usize];
        if here == Outcome::Unsupported {
            self.past.count(KnownDifference::NotBuilt);
            return Compared::Known;
        }
        coverage.note(*call, args, outcome, before, standing);
        if here != outcome && self.past.outcome(*call, args).is_none() {
            return Compared::Differs(format!("Linux {}, Quire {}", outcome.shown(*call), here.shown(*call)));
        }
        if self.past.parts_memory(*call, args, outcome) {
            return Compared::Known;
        }
        self.past.note(*call, args, outcome, before);
        match wanted {
            Some(wanted) => self.look(made, wanted, linux, quire),
            None => Compared::Alike,
        }
    }

    /// On Linux `MAP_32BIT` searches from a random place in the first 32 MiB of a GiB, on Quire from its
    /// start. Where each found a place in that GiB, Quire's mapping is made again at Linux's, which has to be
    /// free. `None` where Quire alone found one, in the first 32 MiB. Where it then refused the mapping for
    /// another reason, which Linux looks at later, the outcome is Linux's.
    fn placed_low(&mut self, made: &Made<'_>, here: Outcome) -> Option<Outcome> {
        const ENOMEM: i64 = -12;
        const LOW: core::ops::Range<u64> = 1 << 30..1 << 31;
        const RANDOM: u64 = 32 << 20;
        let Made { op: Op { call, process, .. }, args, outcome } = *made;
        let [hint, len, _, flags, ..] = args;
        let low = flags & (MAP_32BIT | MAP_FIXED | MAP_FIXED_NOREPLACE) == MAP_32BIT;
        let (Call::Mmap, true, Outcome::Value(there), Outcome::Value(place)) = (*call, low, outcome, here)
        else {
            return Some(here);
        };
        if there == ENOMEM && place < 0 && place != ENOMEM {
            let regions = &self.before[*process as usize].regions;
            let known = first_fit(regions, LOW, len).is_some_and(|found| found < LOW.start + RANDOM);
            if known {
                self.past.count(KnownDifference::Below2G);
            }
            return Some(if known { outcome } else { here });
        }
        // A hint is followed by both sides or by none.
        if !LOW.contains(&place.cast_unsigned()) || place.cast_unsigned() == hint & !(PAGE_SIZE - 1) {
            return Some(here);
        }
        if LOW.contains(&there.cast_unsigned()) {
            self.past.count(KnownDifference::Below2G);
            if there == place {
                return Some(here);
            }
            self.processes.make(*process, Call::Munmap, [place.cast_unsigned(), len, 0, 0, 0, 0]);
            let mut args = args;
            args[0] = there.cast_unsigned();
            return Some(self.processes.make(*process, *call, args));
        }
        let known = there == ENOMEM && place.cast_unsigned() < LOW.start + RANDOM;
        if known {
            self.past.count(KnownDifference::Below2G);
        }
        (!known).then_some(here)
    }

    /// Compares the states after an operation.
    fn look(
        &mut self,
        made: &Made<'_>,
        wanted: Wanted,
        linux: &Observation,
        quire: &mut Observation,
    ) -> Compared {
        let Made { op: Op { call, process, .. }, args, outcome } = *made;
        self.processes.observe(*process, wanted, quire);
        if self.past.miscounts_locked(*call, args, linux, quire)
            || self.past.left_split(*call, outcome, linux, quire)
            || self.past.pages_part(*call, args, linux, quire)
        {
            return Compared::Known;
        }
        let mut result = compare(self.start, &mut self.past, wanted, linux, quire);
        let memfd = self.processes.memfd(*process, args[0]);
        result = result.and_then(|()| taken::check(*call, args, outcome, memfd, [linux, quire]));
        if result.is_ok() && *call == Call::Mincore && outcome == Outcome::Value(0) {
            result = self.residency(*process, args, linux, quire);
        }
        if *call == Call::Fork && outcome == Outcome::Value(0) {
            self.before[args[0] as usize].clone_from(quire);
        }
        core::mem::swap(&mut self.before[*process as usize], quire);
        match result {
            Ok(()) => Compared::Alike,
            Err(what) => Compared::Differs(what),
        }
    }

    /// Compares what `mincore` returned.
    fn residency(
        &mut self,
        process: u32,
        args: [u64; 6],
        linux: &Observation,
        quire: &Observation,
    ) -> Result<(), String> {
        let [addr, len, ..] = args;
        let end = addr + len;
        let mut there = quire.regions.iter().filter(|region| region.start < end && addr < region.end);
        if there.any(|region| self.past.residency(region)) {
            return Ok(());
        }
        let here = self.processes.mincore(process, addr, len);
        for (at, (linux, here)) in linux.residency.iter().zip(&here).enumerate() {
            let page = addr + at as u64 * PAGE_SIZE;
            let mut there = quire.regions.iter().filter(|region| region.start <= page && page < region.end);
            let may_be_hole = |region| !linux && self.past.may_be_hole(region);
            if linux != here && !there.any(may_be_hole) {
                let side = if *linux { "Linux" } else { "Quire" };
                return Err(format!("mincore: page {page:#x} is in memory only on {side}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with these settings, the others of which it has not.
    struct Set(tempfile::TempDir);

    impl Set {
        fn new(file: &str, text: &str) -> Self {
            let set = Self(tempfile::tempdir().expect("a new folder"));
            set.write(file, text);
            set
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.path().join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a new folder");
            std::fs::write(file, text).expect("a new file");
        }

        fn host(&self) -> Host {
            Host::below(self.0.path().to_path_buf())
        }
    }

    fn verdict(sides: &mut SideBySide, program: &str) -> Verdict {
        let program: Program = program.parse().expect("a program");
        let run = sides.run(&program, Effort::Thorough, Belief::Repeated, &mut Coverage::default());
        run.expect("Linux can be asked")
    }

    const MARKS_PAGES: &str = "quire-diff 1\nwindow 0x7fffc00000\n\
        1 p0 mmap(window+0x0, 0x4000, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0x0)\n\
        2 p0 madvise(window+0x0, 0x4000, MADV_MERGEABLE)\n\
        3 p0 write(window+0x0, 0x90)\n\
        4 p0 madvise(window+0x0, 0x4000, MADV_UNMERGEABLE)\n";

    /// Linux makes equal pages of such memory one, at moments of its own.
    #[test]
    fn no_memory_is_marked_mergeable_where_the_host_merges_equal_pages() {
        const MERGING: &str = "sys/kernel/mm/ksm/run";
        let set = Set::new(MERGING, "1\n");
        let mut sides = SideBySide::on(set.host(), Setup::default()).expect("both sides");
        let merges = verdict(&mut sides, MARKS_PAGES);
        assert_eq!((merges.mismatch, merges.compared, merges.not_made, merges.merging), (None, 3, 1, 1));
        assert_eq!(merges.outcomes[1], Outcome::NotMade);
        // The setting is looked at before each program: 2 takes pages apart and merges none.
        set.write(MERGING, "2\n");
        let verdict = verdict(&mut sides, MARKS_PAGES);
        assert_eq!((verdict.mismatch, verdict.compared, verdict.merging), (None, 4, 0));
    }

    /// A program inherits that all its memory is merged, through exec too.
    #[test]
    fn memory_is_not_marked_for_the_caller_s_sake() {
        const SET: i32 = 67;
        const GET: i32 = 68;
        // SAFETY: equal pages of this process may become one, until it is unset.
        unsafe {
            if libc::prctl(SET, 1_u64, 0_u64, 0_u64, 0_u64) != 0 {
                return println!("skipped: this Linux merges no pages of whole processes");
            }
        }
        let mut sides = SideBySide::new(Setup::default()).expect("both sides");
        // SAFETY: nothing else in this process depends on what is unset.
        let inherited = unsafe {
            let was = libc::prctl(GET, 0_u64, 0_u64, 0_u64, 0_u64);
            libc::prctl(SET, 0_u64, 0_u64, 0_u64, 0_u64);
            was
        };
        assert_eq!(inherited, 1);
        let map = "quire-diff 1\nwindow 0x7fffc00000\n\
            1 p0 mmap(window+0x0, 0x4000, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED, -1, 0x0)\n";
        assert_eq!(verdict(&mut sides, map).mismatch, None);
    }

    #[test]
    fn a_host_that_grants_what_there_is_cannot_be_compared() {
        const OVERCOMMIT: &str = "proc/sys/vm/overcommit_memory";
        let set = Set::new(OVERCOMMIT, "2\n");
        let error = SideBySide::on(set.host(), Setup::default()).expect_err("nothing to compare").to_string();
        assert!(error.contains("vm.overcommit_memory is 2") && !error.contains('\n'), "{error}");
    }
}
