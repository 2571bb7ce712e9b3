//! Memory limits, of recordings that were made up so that it is known what they cost.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use quire_advise::{Host, LimitSetting, LimitSwap, Limits, Means, Prediction, predict};
use quire_measure::SwapSupport;
use quire_trace::event::{
    Access, Call, CallDetail, CloneFacts, Compressibility, Event, EventKind, ExecImage, ExitStatus, Fault,
    LinuxFigures, Lost, LostCause, Mode, Outcome, TaskId,
};
use quire_trace::format::{Pressure, TraceHeader, TraceReader, TraceWriter, UseSource};
use std::path::{Path, PathBuf};

const PAGE: u64 = 4096;
const BASE: u64 = 0x10_0000_0000;
const SHARED: u64 = 0x20_0000_0000;
const SECOND: u64 = 1_000_000_000;
/// What is touched first, and again at the end.
const OLD: u64 = 200;
/// What is touched in between, once.
const NEW: u64 = 800;
/// The same of a program of 16 MiB, and the pages that stay resident while it is recorded.
const MANY: u64 = 3896;
const KEPT: u64 = 1024;
/// The size that pages compress to, by its class of [`Compressibility`]: above 1024 bytes.
const CLASS: usize = 4;

/// A recording in a file of the test's own.
struct Invented(PathBuf);

impl Drop for Invented {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Invented {
    /// Of a program that writes to [`OLD`] pages, to [`NEW`] others, and to the old ones again.
    fn new(name: &str, uses: UseSource) -> Self {
        Self::made(name, uses, None, NEW)
    }

    /// With so many others, and a limit that the program was shown.
    fn made(name: &str, uses: UseSource, shown_limit: Option<u64>, new: u64) -> Self {
        Self::with_shared(name, uses, shown_limit, new, 0)
    }

    /// And with so many pages of shared memory, which it writes to first.
    fn with_shared(name: &str, uses: UseSource, shown_limit: Option<u64>, new: u64, shared: u64) -> Self {
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/python-structures.qtr");
        let mut header = TraceReader::open(&bundled).unwrap().header().clone();
        (header.uses, header.shown_limit) = (uses, shown_limit);
        let (file, path) = tempfile::Builder::new().prefix(name).tempfile().unwrap().keep().unwrap();
        let mut writer = TraceWriter::new(file, &header, 3).unwrap();
        let mut push = |time_ns, kind| {
            writer.push(&Event { time_ns, task: TaskId(0), cpu: 0, kind }).unwrap();
        };
        let image = ExecImage { max_map_count: 65530, overcommit_memory: 1, ..ExecImage::default() };
        push(0, EventKind::Exec(Box::new(image)));
        let bytes = (OLD + new) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let args = [BASE, bytes, 3, flags as u64, u64::MAX, 0];
        let map = Call { number: libc::SYS_mmap as u32, args, result: BASE as i64, detail: CallDetail::None };
        push(0, EventKind::Call(map));
        let mut sample = Compressibility::default();
        sample.sizes[CLASS] = 100;
        push(0, EventKind::Compressibility(sample));
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let args = [SHARED, shared * PAGE, 3, flags as u64, u64::MAX, 0];
        let map =
            Call { number: libc::SYS_mmap as u32, args, result: SHARED as i64, detail: CallDetail::None };
        if shared > 0 {
            push(0, EventKind::Call(map));
        }
        let first = (0..shared).map(|page| (SHARED + page * PAGE, Outcome::Minor));
        let touches = (0..OLD + new).map(|page| (BASE + page * PAGE, Outcome::Minor));
        let again = (0..OLD).map(|page| (BASE + page * PAGE, Outcome::Major));
        for (addr, outcome) in first.chain(touches).chain(again) {
            let (access, mode) = (Access::Write, Mode::User);
            push(SECOND, EventKind::Fault(Fault { addr, access, mode, outcome, inferred: false }));
        }
        push(2 * SECOND, EventKind::Exit(ExitStatus::Code(0)));
        writer.finish(0, 0).unwrap();
        Self(path)
    }

    /// Of a recording of each use that lost so many.
    fn lossy(name: &str, lost: u64) -> Self {
        let lost = EventKind::Lost(Lost { count: lost, cause: LostCause::RingFull });
        Self::new(name, UseSource::Exact).ending(lost, None)
    }

    /// Of a recording under a pressure of [`KEPT`] pages of a program that has all of its memory at its end:
    /// so many of its pages are resident, and the others paged out.
    fn pressed(name: &str, resident: u64) -> Self {
        let rss_anon = resident * PAGE;
        let vm_swap = (OLD + MANY) * PAGE - rss_anon;
        let figures = LinuxFigures { rss_anon, vm_swap, ..LinuxFigures::default() };
        let whole = Self::made(name, UseSource::Pressure, None, MANY);
        whole.ending(EventKind::Figures(Box::new(figures)), Some(Pressure::of(KEPT * PAGE)))
    }

    /// Of the same program, which forks when it has all of its memory. The worker writes to so many of its
    /// pages, and both go on for half of the time, at the end of which so many pages of each are resident.
    fn preforking(name: &str, writes: u64, resident: u64) -> Self {
        let clone = CloneFacts {
            child: TaskId(1),
            child_tid: 2,
            child_pid: 2,
            flags: 0,
            shares_memory: false,
            same_process: false,
        };
        let rss_anon = resident * PAGE;
        let vm_swap = (OLD + MANY) * PAGE - rss_anon;
        let figures = LinuxFigures { rss_anon, vm_swap, ..LinuxFigures::default() };
        let figures = EventKind::Figures(Box::new(figures));
        let worker = |time_ns, kind| Event { time_ns, task: TaskId(1), cpu: 0, kind };
        let write = |page: u64| {
            let (access, mode, outcome) = (Access::Write, Mode::User, Outcome::Minor);
            let fault = Fault { addr: BASE + page * PAGE, access, mode, outcome, inferred: false };
            worker(SECOND, EventKind::Fault(fault))
        };
        let fork = Event { task: TaskId(0), ..worker(SECOND, EventKind::Clone(clone)) };
        let end =
            [figures.clone(), EventKind::Exit(ExitStatus::Code(0))].map(|kind| worker(2 * SECOND, kind));
        let more = std::iter::once(fork).chain((0..writes).map(write)).chain(end).collect();
        let whole = Self::made(name, UseSource::Pressure, None, MANY).with(more, None);
        whole.ending(figures, Some(Pressure::of(KEPT * PAGE)))
    }

    /// With this before the program's end, and made under this pressure.
    fn ending(self, kind: EventKind, pressure: Option<Pressure>) -> Self {
        let event = Event { time_ns: 2 * SECOND, task: TaskId(0), cpu: 0, kind };
        self.with(vec![event], pressure)
    }

    /// As of a host with this kernel and so many CPUs, of which it ran on so many.
    fn on(self, kernel: &str, cpus: u32, ran_on: u32) -> Self {
        let reader = TraceReader::open(&self.0).unwrap();
        let header = TraceHeader { kernel: kernel.to_owned(), cpus, ..reader.header().clone() };
        let events: Vec<Event> = reader.map(|event| event.unwrap()).collect();
        let mut writer = TraceWriter::new(std::fs::File::create(&self.0).unwrap(), &header, 3).unwrap();
        for (number, event) in (0..).zip(events) {
            writer.push(&Event { cpu: number % ran_on, ..event }).unwrap();
        }
        writer.finish(0, 0).unwrap();
        self
    }

    /// With these events before the program's end.
    fn with(self, more: Vec<Event>, pressure: Option<Pressure>) -> Self {
        let reader = TraceReader::open(&self.0).unwrap();
        let header = TraceHeader { pressure, ..reader.header().clone() };
        let mut events: Vec<Event> = reader.map(|event| event.unwrap()).collect();
        let last = events.len() - 1;
        events.splice(last..last, more);
        let mut writer = TraceWriter::new(std::fs::File::create(&self.0).unwrap(), &header, 3).unwrap();
        events.iter().for_each(|event| writer.push(event).unwrap());
        writer.finish(0, 0).unwrap();
        self
    }

    fn predict(&self) -> Prediction {
        predict(std::slice::from_ref(&self.0), 2, &Host::default(), &|_, _| {}).unwrap()
    }
}

/// Half of the pages have gone out when the program comes back to the old ones, these first: each is a major
/// fault. A disk is read ahead, so that most of them are there before they are touched.
#[test]
fn major_faults_are_those_of_the_pages_that_went_out() {
    let found = Invented::new("exact", UseSource::Exact).predict();
    let limits = &found.limits;
    assert!(limits.known && limits.need.anonymous == (OLD + NEW) * PAGE, "{limits:?}");
    assert_eq!(limits.rows.len(), 12);
    for (setting, row) in limits.rows.iter().filter(|(setting, _)| setting.percent == 50) {
        let figures = row.figures.expect("it fits");
        let faults = figures.major_faults.median;
        assert_eq!(setting.bytes - setting.need.stays.next_multiple_of(PAGE), 500 * PAGE);
        match setting.swap {
            LimitSwap::Zram | LimitSwap::ZramZstd => {
                assert_eq!(faults, OLD as f64, "{figures:?}");
                assert_eq!(figures.swap_read.median, (OLD * PAGE) as f64, "{figures:?}");
            }
            LimitSwap::Zswap | LimitSwap::Disk => {
                assert!(faults > 0.0 && faults < OLD as f64 / 4.0, "{setting:?}: {figures:?}");
            }
        }
        // A page that comes back takes the place of another one.
        assert!(figures.swap_read.median >= (OLD * PAGE) as f64, "{figures:?}");
        assert!(figures.swap_written.median >= (500 * PAGE) as f64, "{figures:?}");
        assert!(figures.swapped.median < ((OLD + NEW) * PAGE) as f64, "{figures:?}");
        let ratio = figures.compressed.map(|compressed| compressed.median / figures.swapped.median);
        // The recording has no samples of zstd.
        assert_eq!(ratio.is_some(), matches!(setting.swap, LimitSwap::Zram | LimitSwap::Zswap));
        assert!(ratio.is_none_or(|ratio| (0.25..0.3).contains(&ratio)), "{figures:?}");
    }
}

/// What cannot be set up is not predicted, and no command for it is told. A recording of another kernel is of
/// a host of which nothing is known.
#[test]
fn swap_that_the_host_cannot_set_up_is_left_out() {
    let recording = Invented::new("lacking", UseSource::Exact);
    let kernel = TraceReader::open(&recording.0).unwrap().header().kernel.clone();
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let advised = || {
        let host = Host { swaps: Some(SwapSupport::at(root.path())), ..Host::default() };
        predict(std::slice::from_ref(&recording.0), 2, &host, &|_, _| {}).unwrap().limits
    };
    let kinds = |limits: &Limits| {
        let mut kinds: Vec<LimitSwap> = limits.all().map(|(setting, _)| setting.swap).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    write("proc/sys/kernel/osrelease", &format!("{kernel}\n"));
    // Neither zram nor zswap.
    let limits = advised();
    assert_eq!((kinds(&limits), limits.rows.len()), (vec![LimitSwap::Disk], 3));
    assert_eq!(limits.lacking.len(), 3, "{:?}", limits.lacking);
    let means: Vec<_> = Means::all(&limits.enough.unwrap()).iter().map(|means| means.name).collect();
    assert_eq!(means, ["disk", "systemd", "cgroup_v2", "cgroup_v1"]);
    // Both, but zswap without lz4 and zram without zstd.
    write("sys/module/zswap/parameters/compressor", "lzo\n");
    write("sys/class/zram-control/hot_remove", "");
    write("sys/block/zram0/comp_algorithm", "[lzo] lz4\n");
    let limits = advised();
    assert_eq!(kinds(&limits), [LimitSwap::Zram, LimitSwap::Disk]);
    let lacking: Vec<&str> = limits.lacking.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(lacking, ["zram has no zstd here, but lzo, lz4", "this kernel has no lz4 for zswap"]);
    write("proc/sys/kernel/osrelease", "another\n");
    let limits = advised();
    assert!(limits.lacking.is_empty() && limits.rows.len() == 12, "{:?}", limits.lacking);
}

/// A lost page fault is a use that no replay makes.
#[test]
fn no_limit_rests_on_recordings_that_lack_uses() {
    let found = Invented::lossy("few", 20).predict();
    assert!(found.lost == 20 && found.limits.enough.is_some(), "{:?}", found.limits);
    assert_eq!(found.limits.unknown.filter(|why| why.contains("not recorded")), None);
    let found = Invented::lossy("many", 200).predict();
    let why = found.limits.unknown.expect("a reason");
    assert!(found.lost == 200 && why.starts_with("200 page faults"), "{why}");
}

/// Of memory that the recorder did not page out only the first use is recorded: it would cost nothing.
#[test]
fn no_limit_rests_on_memory_that_was_never_paged_out() {
    let kept = Invented::pressed("kept", KEPT);
    let found = kept.predict();
    assert!(found.unreliable.is_none() && found.limits.known, "{:?}", found.limits);
    let with_figures = |limits: &Limits| limits.all().filter(|(_, row)| row.figures.is_some()).count();
    assert!(found.limits.enough.is_some() && with_figures(&found.limits) > 0, "{:?}", found.limits);
    assert!(found.at_peak.unused.is_some());
    let told =
        |limits: &Limits| limits.unknown.as_ref().is_some_and(|why| why.contains("under a pressure of"));
    assert!(!told(&found.limits), "{:?}", found.limits.unknown);

    let stayed = Invented::pressed("stayed", OLD + MANY);
    let found = stayed.predict();
    assert!(found.unreliable.is_none() && found.limits.enough.is_none(), "{:?}", found.limits);
    assert!(with_figures(&found.limits) == 0 && told(&found.limits), "{:?}", found.limits);
    assert_eq!(found.at_peak.unused, None);
    // One recording of several is enough.
    let files = [&kept, &stayed].map(|file| file.0.clone());
    let found = predict(&files, 2, &Host::default(), &|_, _| {}).unwrap();
    assert!(found.limits.enough.is_none() && told(&found.limits), "{:?}", found.limits);
}

/// Linux pages out nothing that several processes have mapped, so that no recording has its later uses. It
/// would seem never to be used again, and a limit of a quarter to be enough.
#[test]
fn each_limit_has_room_for_memory_that_is_shared_after_a_fork() {
    let found = Invented::preforking("preforking", 0, OLD + MANY).predict();
    let (limits, all) = (&found.limits, (OLD + MANY) * PAGE);
    assert_eq!((limits.shared_after_fork, limits.need.anonymous), (all, all));
    assert!(limits.rows.iter().all(|(_, row)| row.fits() && row.figures.is_none()), "{:?}", limits.rows);
    let enough = limits.enough.as_ref().expect("all of it is enough");
    assert!(enough.least.setting.percent == 100 && enough.high > limits.need.all(), "{enough:?}");
    assert_eq!(found.at_peak.unused, None);

    // The worker has half of them for itself: of 6144 pages 2048 are shared.
    let found = Invented::preforking("half", 2048, OLD + MANY).predict();
    let limits = &found.limits;
    assert_eq!((limits.shared_after_fork, limits.need.anonymous), (2048 * PAGE, 6144 * PAGE));
    let out = |limits: &Limits, percent| {
        let is_it = |setting: &LimitSetting| setting.percent == percent && setting.swap == LimitSwap::Zram;
        let row = limits.rows.iter().find(|(setting, _)| is_it(setting));
        row.and_then(|(_, row)| Some(row.figures?.swap_written.median / PAGE as f64))
    };
    let lowest = |limits: &Limits| limits.curve.iter().map(|(setting, _)| setting.percent).min();
    // Of a limit of 75 % the others have 4608 less 2048 pages.
    assert!(out(limits, 75).is_some_and(|pages| pages >= 6144.0 - 2560.0), "{:?}", limits.rows);
    assert_eq!(lowest(limits), Some(50), "that leaves as much for the others as was resident");

    // What is shared is no more than stays anyway. It does not go out for the others all the same: of 7168
    // pages they have what a limit leaves beside it, and the recording shows what that costs.
    let found = Invented::preforking("own", OLD + MANY - KEPT, KEPT).predict();
    let limits = &found.limits;
    assert_eq!((limits.shared_after_fork, limits.need.anonymous), (KEPT * PAGE, 7168 * PAGE));
    for percent in [50_u32, 75, 90] {
        let others = f64::from(percent) / 100.0 * 7168.0 - KEPT as f64;
        let pages = out(limits, percent);
        assert!(pages.is_some_and(|pages| pages >= 7168.0 - others), "{percent}: {pages:?}");
    }
    assert!(lowest(limits).is_some_and(|percent| percent <= 25), "{:?}", limits.curve);
    assert!(found.at_peak.unused.is_some(), "{:?}", found.at_peak);
    assert!(
        limits.unknown.as_ref().is_none_or(|why| !why.contains("under a pressure of")),
        "{:?}",
        limits.unknown
    );

    // What a fork shares of a small part changes nothing.
    let found = Invented::preforking("little", OLD + MANY - 100, KEPT).predict();
    assert_eq!(found.limits.shared_after_fork, 0);
}

/// A header may claim any pressure.
#[test]
fn a_pressure_that_is_only_claimed_ends_no_prediction() {
    let claims = Invented::pressed("claims", KEPT).with(Vec::new(), Some(Pressure::of(u64::MAX)));
    let found = claims.predict();
    assert!(found.limits.known && found.limits.enough.is_none(), "{:?}", found.limits);
}

/// Linux 6.8 has what each CPU has not added to its counters yet. That is of CPUs that it ran on, and no
/// reason for memory that is missing in the recording of a program that ran on one of many.
#[test]
fn counters_are_off_by_what_the_cpus_have_on_which_it_ran() {
    let rss_anon = (OLD + MANY) * PAGE + (30 << 20);
    let figures = EventKind::Figures(Box::new(LinuxFigures { rss_anon, ..LinuxFigures::default() }));
    for (kernel, cpus, ran_on, missing) in [
        ("6.8.0", 256, 1, true),
        ("6.8.0", 256, 30, false),
        ("6.18.0", 256, 30, true),
        ("6.8.0", u32::MAX, 1, false),
    ] {
        let recording = Invented::made("counters", UseSource::None, None, MANY);
        let recording = recording.ending(figures.clone(), None).on(kernel, cpus, ran_on);
        let why = recording.predict().unreliable;
        assert_eq!(why.is_some(), missing, "{kernel}, {ran_on} of {cpus}: {why:?}");
    }
}

/// The old pages are used again after the peak, the new ones are not.
#[test]
fn what_is_never_used_again_is_told_where_uses_are_recorded() {
    let found = Invented::new("unused", UseSource::Exact).predict();
    assert_eq!(found.at_peak.unused, Some([NEW * PAGE; 2]), "{:?}", found.at_peak);
    let found = Invented::new("unused", UseSource::None).predict();
    assert_eq!(found.at_peak.unused, None);
}

/// So few faults cost nothing: the smallest limit is enough. The curve goes down to it.
#[test]
fn the_smallest_limit_that_costs_little_is_enough() {
    let found = Invented::new("enough", UseSource::Exact).predict();
    let limits = &found.limits;
    let percents: Vec<u32> = limits.curve.iter().map(|(setting, _)| setting.percent).collect();
    assert!(percents.len() >= 4 && percents[0] == 100 && percents.is_sorted_by(|one, next| one > next));
    let enough = limits.enough.as_ref().expect("some limit is cheap");
    let lowest = limits.curve.iter().rfind(|(_, row)| row.fits());
    assert_eq!(lowest.map(|(setting, _)| setting.percent), Some(enough.least.setting.percent));
    assert!(
        enough.least.share.median < 0.02
            && enough.high > enough.least.setting.bytes
            && enough.max > enough.high
    );
    assert!(enough.smaller.is_empty());
    // Of so small a limit more than 3 % is the kernel's, which was not measured.
    assert!(
        limits.unknown.as_ref().is_some_and(|why| why.contains("quire calibrate")),
        "{:?}",
        limits.unknown
    );
}

/// Shared memory is a part of what a limit has room for: that which is not used again goes out.
#[test]
fn shared_memory_goes_to_swap_as_private_memory_does() {
    const PAGES: u64 = 1500;
    let found = Invented::with_shared("shared", UseSource::Exact, None, NEW, PAGES).predict();
    let limits = &found.limits;
    let stays = limits.need.stays;
    let all = (OLD + NEW + PAGES) * PAGE;
    assert!(limits.need.anonymous == all && stays < PAGES * PAGE, "{limits:?}");
    let zram = |percent| {
        let is_it = |setting: &LimitSetting| setting.percent == percent && setting.swap == LimitSwap::Zram;
        limits.rows.iter().find(|(setting, _)| is_it(setting)).unwrap()
    };
    let (half, row) = zram(50);
    assert_eq!(half.bytes - stays.next_multiple_of(PAGE), all / 2);
    let figures = row.figures.expect("it fits");
    let (faults, swapped) = (figures.major_faults.median, figures.swapped.median);
    assert!(faults < 20.0 && swapped >= (all / 2) as f64, "{faults} {swapped}");
    assert!(limits.enough.is_some(), "{:?}", limits.unknown);
    let at_peak = found.at_peak;
    assert_eq!((at_peak.shared, at_peak.anonymous), (PAGES * PAGE, (OLD + NEW) * PAGE));
    let (_, present) = &found.rows[0];
    assert_eq!(present.peak_charge.median, (stays + all) as f64);
    assert_eq!(present.peak_anonymous.median, ((OLD + NEW) * PAGE) as f64, "settings change that alone");
}

/// A program has private memory, and shared memory when that is gone: limits are shares of the larger of
/// both.
#[test]
fn private_and_shared_memory_of_two_moments_are_not_needed_at_once() {
    const PAGES: u64 = 1200;
    let call = |number: i64, args, result: u64| {
        let (number, result) = (number as u32, result as i64);
        EventKind::Call(Call { number, args, result, detail: CallDetail::None })
    };
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    let unmap = call(libc::SYS_munmap, [BASE, (OLD + NEW) * PAGE, 0, 0, 0, 0], 0);
    let map = call(libc::SYS_mmap, [SHARED, PAGES * PAGE, 3, flags, u64::MAX, 0], SHARED);
    let touch = |page| {
        let (access, mode, outcome) = (Access::Write, Mode::User, Outcome::Minor);
        let fault = Fault { addr: SHARED + page * PAGE, access, mode, outcome, inferred: false };
        EventKind::Fault(fault)
    };
    let more = [unmap, map].into_iter().chain((0..PAGES).map(touch));
    let more = more.map(|kind| Event { time_ns: 2 * SECOND, task: TaskId(0), cpu: 0, kind }).collect();
    let found = Invented::new("two", UseSource::Exact).with(more, None).predict();
    assert_eq!(found.limits.need.anonymous, PAGES * PAGE, "{:?}", found.limits);
}

/// A program that reads its limit takes less memory if that is small. Limits near it are predicted from the
/// recording that was shown it, the others from the one that was shown none, which also has the peak.
#[test]
fn a_limit_is_predicted_from_recordings_that_were_shown_about_that() {
    let free = Invented::new("free", UseSource::Exact);
    let shown = Invented::made("shown", UseSource::Exact, Some(490 * PAGE), 200);
    for files in [[&free, &shown], [&shown, &free]] {
        let files = files.map(|file| file.0.clone());
        let found = predict(&files, 2, &Host::default(), &|_, _| {}).unwrap();
        let limits = &found.limits;
        assert!(limits.shown && limits.need.anonymous == (OLD + NEW) * PAGE, "{limits:?}");
        let faults = |percent| {
            let is_it =
                |setting: &LimitSetting| setting.percent == percent && setting.swap == LimitSwap::Zram;
            let (_, row) = limits.rows.iter().find(|(setting, _)| is_it(setting)).unwrap();
            row.figures.unwrap().major_faults
        };
        assert_eq!(
            [90, 75, 50].map(|percent| faults(percent).median),
            [OLD, OLD, 0].map(|pages| pages as f64)
        );
        assert_eq!(faults(50).spread(), 0.0, "of one recording");
        // The curve is of the same.
        let lowest = limits.curve.iter().rev().find_map(|(_, row)| row.figures).unwrap();
        assert!(lowest.major_faults.median <= OLD as f64 && limits.curve.len() > 3, "{:?}", limits.curve);
    }
    let alone = predict(std::slice::from_ref(&shown.0), 2, &Host::default(), &|_, _| {}).unwrap();
    assert!(alone.limits.shown && alone.limits.need.anonymous == (OLD + 200) * PAGE, "{:?}", alone.limits);
}

/// A recording that does not say what was used again tells whether a program fits, and nothing else.
#[test]
fn no_numbers_come_from_recordings_without_pressure() {
    for uses in [UseSource::None, UseSource::Sampled { interval_ms: 100 }] {
        let limits = Invented::new("unknown", uses).predict().limits;
        assert!(
            !limits.known && limits.rows.len() == 12 && limits.curve.is_empty() && limits.enough.is_none()
        );
        assert!(limits.rows.iter().all(|(_, row)| row.fits() && row.figures.is_none()));
    }
}
