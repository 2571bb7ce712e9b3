//! A trace that is replayed, on machines of its own.

use crate::ahead::Ahead;
use crate::cpus::cpus;
use crate::error::ReplayError;
use crate::limit::GroupLimit;
use crate::moment::{Moment, Watcher};
use crate::options::{Audits, ReplayOptions};
use crate::plan::{Needs, SampledPart};
use crate::report::ReplayReport;
use crate::run::{RunOptions, RunningReplay};
use crate::settings::{apply_shmem_huge, shmem_huge_of_programs};
use crate::{plan, pressure, swap};
use quire_host::{Contents, HostConfig, Machine};
use quire_mm::{MemoryConfig, file::ShmemHuge, memcg::MemcgId};
use quire_trace::event::Event;
use quire_trace::format::{Pressure, TraceError, TraceHeader, TraceReader, UseSource};
use std::borrow::Borrow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How far a replay has come: events done, of how many.
pub type Progress<'p> = &'p mut dyn FnMut(u64, u64);

/// A trace that was looked through, ready to be replayed.
#[derive(Debug)]
pub struct Replay {
    path: PathBuf,
    options: ReplayOptions,
    needs: Arc<Needs>,
    /// Computed on first use, for a recording under pressure. The lock is held meanwhile, so that they are
    /// computed once.
    peaks: Arc<Mutex<Option<Peaks>>>,
}

/// Peaks of anonymous memory of a recording under pressure, replayed without a limit, in bytes.
#[derive(Clone, Copy, Debug)]
struct Peaks {
    /// Of the memory that was paged out: a sample, or all.
    covered: u64,
    /// Of all.
    all: u64,
    /// The host had too little free memory to find them.
    host_is_short: bool,
}

/// How often a replay that nothing limits is made at most, each time with twice the RAM, if that was too
/// little.
const MOST_RUNS: usize = 3;
/// RAM up to this is backed by the host before the replay starts, so that the host's page faults are not
/// taken for ours.
const MOST_PREFAULTED: u64 = 1 << 30;
/// RAM from this on is backed by large pages of the host. In a smaller machine whose pages have no bytes,
/// what is used (the memory map, and tables) is less than what it costs to clear one.
const LEAST_IN_LARGE_PAGES: u64 = 128 << 20;
/// A sample's part of the RAM that was asked for is at least so much.
const LEAST_RAM: u64 = 16 << 20;
/// Events between two calls of the progress function.
const PROGRESS_STEP: u64 = 1 << 14;

impl Replay {
    /// Looks a trace through: whether it is whole, and what it needs.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Trace`], [`ReplayError::NothingSalvaged`], [`ReplayError::Impossible`].
    pub fn open(path: &Path, options: ReplayOptions) -> Result<Self, ReplayError> {
        let mut reader = open(path, &options)?;
        let mut needs = Needs::of(reader.header(), options.claims);
        for event in &mut reader {
            needs.add(&event?);
        }
        if let Some(damage) = reader.damage().filter(|_| reader.trailer().is_none() && needs.is_empty()) {
            return Err(ReplayError::NothingSalvaged(path.to_path_buf(), damage.to_string()));
        }
        if let Some((event, what)) = needs.impossible() {
            return Err(ReplayError::Impossible(path.to_path_buf(), event, what));
        }
        Ok(Self { path: path.to_path_buf(), options, needs: Arc::new(needs), peaks: Arc::default() })
    }

    /// A replay of the same trace otherwise. Not looked through again.
    #[must_use]
    pub fn with(&self, options: ReplayOptions) -> Self {
        let (needs, peaks) = (Arc::clone(&self.needs), Arc::clone(&self.peaks));
        Self { path: self.path.clone(), options, needs, peaks }
    }

    /// What the trace says of itself.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Trace`].
    pub fn header(&self) -> Result<TraceHeader, ReplayError> {
        Ok(open(&self.path, &self.options)?.header().clone())
    }

    /// What the trace knows of pages that were used again.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Trace`].
    pub fn uses(&self) -> Result<UseSource, ReplayError> {
        Ok(self.needs.uses(open(&self.path, &self.options)?.header()))
    }

    /// The command that was recorded, in words.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Trace`].
    pub fn command(&self) -> Result<Vec<String>, ReplayError> {
        let reader = open(&self.path, &self.options)?;
        let words = reader.header().command.iter();
        Ok(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
    }

    /// What the trace needs and holds.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Replays the trace on a machine of its own.
    ///
    /// # Errors
    ///
    /// [`ReplayError`].
    pub fn run(&self, progress: Progress<'_>) -> Result<ReplayReport, ReplayError> {
        let sample = self.sample()?;
        let mut report = self.run_with_enough(sample, progress)?;
        // What the sample is a share of was found by replays, too.
        let peaks = *self.peaks.lock().unwrap_or_else(PoisonError::into_inner);
        report.host_is_short |= sample.is_some() && peaks.is_some_and(|peaks| peaks.host_is_short);
        Ok(report)
    }

    /// Replays the sample, or all if there is none, again with more memory if that was short for no limit.
    fn run_with_enough(
        &self,
        sample: Option<SampledPart>,
        progress: Progress<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        let mut ram = 0;
        for _ in 1..MOST_RUNS {
            let (report, more) = self.run_with(sample, ram, progress, &mut |_| {})?;
            let Some(more) = more else { return Ok(report) };
            ram = more;
        }
        self.run_with(sample, ram, progress, &mut |_| {}).map(|(report, _)| report)
    }

    /// Replays the trace once on a machine of its own, with a look at the machine after each event.
    /// [`Counters`](crate::Counters) need [`ReplayOptions::life`].
    ///
    /// # Errors
    ///
    /// [`ReplayError`].
    pub fn run_watched(
        &self,
        progress: Progress<'_>,
        watcher: Watcher<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        self.run_with(self.sample()?, 0, progress, watcher).map(|(report, _)| report)
    }

    /// Replays the sample, or all if there is none, with `least` bytes of RAM at least. Also returns with how
    /// much to do it again, if nothing limits the programs and there was too little all the same.
    fn run_with(
        &self,
        sample: Option<SampledPart>,
        least: u64,
        progress: Progress<'_>,
        watcher: Watcher<'_>,
    ) -> Result<(ReplayReport, Option<u64>), ReplayError> {
        let mut reader = open(&self.path, &self.options)?;
        let header = reader.header().clone();
        let (machine, is_cut) = self.build(&header, sample, least)?;
        let mut report = self.replay(&machine, &header, sample, &mut reader, progress, watcher)?;
        report.damage = reader.damage().map(ToString::to_string);
        report.ended_early = reader.trailer().is_some_and(|trailer| trailer.ended_early);
        let misfit = report.does_not_fit.as_ref();
        let is_short = !self.is_limited()
            && misfit
                .map_or_else(|| pressure::is_short(machine.memory()), |misfit| !misfit.out_of_proportion);
        // What the host has left is asked when this one is gone.
        drop(machine);
        let wanted = 2 * report.ram;
        let has = is_short.then(|| plan::affordable(wanted));
        report.host_is_short = is_cut || has.is_some_and(|has| has < wanted);
        let more = has.is_some_and(|has| has > report.ram).then_some(wanted);
        Ok((report, more))
    }

    /// Reads the trace into memory, to be replayed again and again.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Trace`].
    pub fn load(self) -> Result<LoadedReplay, ReplayError> {
        let sample = self.sample()?;
        let mut reader = open(&self.path, &self.options)?;
        let header = reader.header().clone();
        let events = reader.by_ref().collect::<Result<_, _>>()?;
        Ok(LoadedReplay { replay: self, header, sample, events })
    }

    fn replay(
        &self,
        machine: &Machine,
        header: &TraceHeader,
        sample: Option<SampledPart>,
        events: impl Iterator<Item = Result<impl Borrow<Event>, TraceError>>,
        progress: Progress<'_>,
        watcher: Watcher<'_>,
    ) -> Result<ReplayReport, ReplayError> {
        let vcpus = (0..cpus(header))
            .map(|number| machine.vcpu(number).map_err(|_| ReplayError::Cpu(number)))
            .collect::<Result<Vec<_>, _>>()?;
        let total = self.needs.events();
        let started = Instant::now();
        let contents = self.options.contents.then(|| Arc::clone(&self.needs));
        let limited = self.is_limited() || self.is_short(machine, header);
        let memcg =
            if self.options.life || self.options.limit.is_some() { memcg(machine)? } else { MemcgId::ROOT };
        let options = RunOptions {
            requested: &self.options,
            limited,
            suffices: self.needed(header),
            // Where a size is given, all of it is replayed.
            too_much_at: self.needs.too_much_at().filter(|_| self.options.memory.is_none()),
            uses: self.needs.uses(header),
            heat: self.options.heat.map(|columns| (columns, self.needs.time_ns())),
            peak_use: self.options.peak_use.then(|| self.needs.time_ns()),
            config: self.config(header),
            memcg,
            limit: self.options.limit.map(|bytes| {
                let part = |bytes| sample.map_or(bytes, |sample| sample.part(bytes));
                GroupLimit { memcg, bytes: part(bytes), beside: self.options.beside.map(part), sample }
            }),
            sample,
        };
        let mut run = RunningReplay::new(machine, vcpus, header, options, contents);
        let mut done = 0;
        let mut events = Ahead::new(events, self.needs.far_changes());
        while let Some(event) = events.take() {
            let event = event?;
            run.step(event.borrow(), &mut events);
            watcher(Moment { event: event.borrow(), memory: machine.memory(), memcg });
            done += 1;
            if run.is_over() {
                break;
            }
            if done % PROGRESS_STEP == 0 {
                progress(done, total);
            }
        }
        progress(done, total);
        let elapsed = started.elapsed();
        let mut report = run.finish(elapsed);
        // Of all of the memory, also where a part was replayed.
        report.limit = self.options.limit;
        if let Some(misfit) = &mut report.does_not_fit {
            misfit.limit = self.options.limit;
        }
        Ok(report)
    }

    /// The part of the memory that is replayed, where that is not all: it is too small for all, and only for
    /// that part it is known what that costs. Where a peak is given, all that was recorded is a part of that.
    fn sample(&self) -> Result<Option<SampledPart>, ReplayError> {
        let is_part = |pressure: &Pressure| pressure.is_sample() || self.options.peak.is_some();
        let Some(pressure) = self.needs.pressure().filter(is_part).filter(|_| self.is_limited()) else {
            return Ok(None);
        };
        let peaks = {
            let mut known = self.peaks.lock().unwrap_or_else(PoisonError::into_inner);
            match *known {
                Some(peaks) => peaks,
                None => *known.insert(self.peaks_of(pressure)?),
            }
        };
        let share = peaks.covered as f64 / self.options.peak.unwrap_or(peaks.all).max(1) as f64;
        Ok((share > 0.0).then_some(SampledPart { pressure, share }))
    }

    /// Replays the recording without a limit.
    fn peaks_of(&self, pressure: Pressure) -> Result<Peaks, ReplayError> {
        let unlimited = ReplayOptions {
            memory: None,
            limit: None,
            swap: None,
            contents: false,
            digest: false,
            life: true,
            audits: Audits::Never,
            stop_at: None,
            peak_use: false,
            ..self.options.clone()
        };
        let unlimited = self.with(unlimited);
        let mut host_is_short = false;
        let mut peak = |sample| -> Result<u64, ReplayError> {
            let report = unlimited.run_with_enough(sample, &mut |_, _| {})?;
            host_is_short |= report.host_is_short;
            Ok(report.life.map_or(0, |life| life.peak_pageable))
        };
        let all = peak(None)?;
        let covered =
            if pressure.is_sample() { peak(Some(SampledPart { pressure, share: 1.0 }))? } else { all };
        Ok(Peaks { covered, all, host_is_short })
    }

    /// Whether memory may run short.
    fn is_limited(&self) -> bool {
        let options = &self.options;
        options.memory.is_some() || options.swap.is_some() || options.limit.is_some()
    }

    /// Whether the host is too small for the machine that the trace needs.
    fn is_short(&self, machine: &Machine, header: &TraceHeader) -> bool {
        machine.memory().frames().reports().totals().present * 4096 < self.needed(header)
    }

    /// Which folios of shared memory may be large.
    fn shmem(&self, header: &TraceHeader) -> ShmemHuge {
        self.options.shmem.unwrap_or_else(|| shmem_huge_of_programs(header))
    }

    /// Bytes of RAM with which nothing runs short.
    fn needed(&self, header: &TraceHeader) -> u64 {
        self.needs.ram_with(self.options.huge.policy, self.shmem(header))
    }

    /// How memory is managed.
    fn config(&self, header: &TraceHeader) -> MemoryConfig {
        MemoryConfig {
            techniques: self.options.techniques,
            overcommit: self.needs.overcommit(header),
            huge: self.options.huge,
            ..MemoryConfig::default()
        }
    }

    /// A machine with so much RAM at least, unless its size was asked for; and whether the host had too
    /// little left for that.
    fn build(
        &self,
        header: &TraceHeader,
        sample: Option<SampledPart>,
        least: u64,
    ) -> Result<(Machine, bool), ReplayError> {
        let options = &self.options;
        let part = |bytes| sample.map_or(bytes, |sample| sample.part(bytes).max(LEAST_RAM));
        // Devices and what they hold lie in the RAM of the machine, too.
        let devices = if options.swap.is_some() { plan::SPARE_BYTES } else { 0 };
        let needed = || self.needed(header).saturating_add(devices).max(least);
        let (ram, is_cut) = match options.memory {
            Some(bytes) => (part(bytes), false),
            None => {
                let needed = needed();
                let ram = plan::affordable(needed);
                (ram, ram < needed)
            }
        };
        let mut host = HostConfig::with_ram(ram).cpus(cpus(header));
        host.paranoid = options.paranoid;
        // Where no page is read, none has to be there.
        host.contents = match options.contents || options.digest {
            true => Contents::Bytes,
            false if header.knows_touched_pages() => Contents::Writes,
            false => Contents::Unknown,
        };
        let has_bytes = host.contents == Contents::Bytes;
        host.prefault = has_bytes && ram <= MOST_PREFAULTED;
        host.large_pages = has_bytes || ram >= LEAST_IN_LARGE_PAGES;
        let machine = Machine::new(&host, self.config(header)).map_err(ReplayError::Machine)?;
        apply_shmem_huge(machine.memory(), self.shmem(header));
        if let Some(spec) = &self.options.swap {
            let host_ram = options.memory.unwrap_or(header.ram);
            swap::attach_swap(machine.memory(), spec, host_ram).map_err(ReplayError::Swap)?;
        }
        Ok((machine, is_cut))
    }
}

/// A trace in memory.
#[derive(Debug)]
pub struct LoadedReplay {
    replay: Replay,
    header: TraceHeader,
    sample: Option<SampledPart>,
    events: Vec<Event>,
}

impl LoadedReplay {
    /// A machine as the trace needs it.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Machine`], [`ReplayError::Swap`].
    pub fn machine(&self) -> Result<Machine, ReplayError> {
        self.replay.build(&self.header, self.sample, 0).map(|(machine, _)| machine)
    }

    /// Replays the trace on `machine`, which this trace's [`machine`](Self::machine) made and whose CPUs are
    /// free. Counts of the machine in the report are since it was made.
    ///
    /// # Errors
    ///
    /// [`ReplayError::Cpu`].
    pub fn run_on(&self, machine: &Machine) -> Result<ReplayReport, ReplayError> {
        let events = self.events.iter().map(Ok);
        self.replay.replay(machine, &self.header, self.sample, events, &mut |_, _| {}, &mut |_| {})
    }
}

/// The memcg that all programs of a replay are in, so that what they are charged counts each page once.
fn memcg(machine: &Machine) -> Result<MemcgId, ReplayError> {
    const NAME: &str = "replay";
    let memcgs = machine.memory().memcgs();
    match memcgs.tree().find(NAME) {
        Some(memcg) => Ok(memcg),
        None => memcgs.lifecycle().create(MemcgId::ROOT, NAME).map_err(ReplayError::Memcg),
    }
}

fn open(path: &Path, options: &ReplayOptions) -> Result<TraceReader<std::fs::File>, TraceError> {
    let reader = TraceReader::open(path)?;
    Ok(if options.salvage { reader.salvaging() } else { reader })
}
