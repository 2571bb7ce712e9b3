//! Advice from the lines of a sweep: the same code as for replays that are made at once, with results in
//! their place.

use super::group::{Key, name};
use super::line::{Line, LineError};
use super::request::{Number, Request};
use crate::error::AdviseError;
use crate::found::Found;
use crate::host::Host;
use crate::identity::{Identity, open_regular};
use crate::jobs::Progress;
use crate::limits::Tries;
use crate::point::{Amount, Asked, Meant, Point};
use crate::predict::{Asking, Prediction, for_settings, in_order, lives};
use crate::setting::{NEVER, Setting, grid};
use crate::source::Source;
use crate::stored::{OTHER_CONTENTS, Stored};
use crate::swap::LimitSwap;
use quire_trace::format::TraceHeader;
use quire_trace::replay::KernelCosts;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// No line is longer, in bytes.
const LONGEST: u64 = 256 << 20;

/// Where a line is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct At {
    file: PathBuf,
    line: u64,
    offset: u64,
    len: usize,
}

impl At {
    fn told(&self) -> String {
        format!("{}:{}", self.file.display(), self.line)
    }

    /// The line again: what replays found is kept for one program at a time.
    fn read(&self) -> Result<Line, String> {
        let mut bytes = vec![0; self.len];
        let file = open_regular(&self.file).map_err(|error| format!("{}: {error}", self.file.display()))?;
        file.read_exact_at(&mut bytes, self.offset).map_err(|error| format!("{}: {error}", self.told()))?;
        let text =
            std::str::from_utf8(&bytes).map_err(|_| format!("{}: {}", self.told(), LineError::Foreign))?;
        Line::read(text).map_err(|error| format!("{}: {error}", self.told()))
    }
}

/// A line that was read, without what replays found.
#[derive(Debug)]
struct Entry {
    at: At,
    quire: String,
    number: Option<Number>,
    path: PathBuf,
    identity: Identity,
    header: TraceHeader,
    request: Request,
    digest: String,
    is_misfit: bool,
}

/// Lines that are to be merged.
#[derive(Debug, Default)]
pub struct Merge {
    entries: Vec<Entry>,
    remarks: Vec<String>,
    /// Something is missing or damaged.
    is_lacking: bool,
}

/// Advice for one program.
#[derive(Debug)]
pub struct Program {
    /// What was predicted.
    pub prediction: Prediction,
    /// The first recording that settings are predicted from, where it was when its line was made.
    pub first: PathBuf,
    identity: Identity,
}

impl Program {
    /// Whether [`first`](Self::first) is still there.
    ///
    /// # Errors
    ///
    /// Why not: it cannot be read, or has other contents.
    pub fn is_at_hand(&self) -> Result<(), String> {
        let identity = Identity::of_file(&self.first).map_err(|error| error.to_string())?;
        if identity == self.identity { Ok(()) } else { Err(OTHER_CONTENTS.to_owned()) }
    }
}

/// Advice for all programs.
#[derive(Debug, Default)]
pub struct Merged {
    /// In the order of the paths of their recordings.
    pub programs: Vec<Program>,
    /// What is repeated, missing or no result, each in one line.
    pub remarks: Vec<String>,
    /// Something that was planned is missing, or damaged.
    pub is_lacking: bool,
}

impl Merge {
    /// Reads the lines of a file. One that cannot be read is told and passed over.
    pub fn read(&mut self, path: &Path) {
        if let Err(error) = self.read_lines(path) {
            self.remark(true, format!("{}: {error}; passed over", path.display()));
        }
    }

    fn read_lines(&mut self, path: &Path) -> io::Result<()> {
        let mut file = BufReader::new(open_regular(path)?);
        let (mut line, mut offset) = (0, 0);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let count = io::Read::take(&mut file, LONGEST).read_until(b'\n', &mut bytes)?;
            if count == 0 {
                break;
            }
            line += 1;
            let is_ended = bytes.last() == Some(&b'\n');
            let len = bytes.len() - usize::from(is_ended);
            let at = At { file: path.to_path_buf(), line, offset, len };
            offset += count as u64;
            if len > 0 {
                self.add(at, &bytes[..len]);
            }
        }
        if offset == 0 {
            self.is_lacking = true;
            self.remarks.push(format!("{}: empty: no result", path.display()));
        }
        Ok(())
    }

    fn add(&mut self, at: At, bytes: &[u8]) {
        let read = std::str::from_utf8(bytes).map_err(|_| LineError::Foreign).and_then(Line::read);
        match read {
            Ok(line) => {
                let is_misfit = line.is_misfit();
                let Line { number, quire, path, identity, header, request, digest, .. } = line;
                let entry = Entry { at, quire, number, path, identity, header, request, digest, is_misfit };
                self.entries.push(entry);
            }
            Err(error) => {
                self.is_lacking |= error != LineError::Foreign;
                self.remarks.push(format!("{}: {error}; passed over", at.told()));
            }
        }
    }

    /// Advice from what was read, for `host`. Replays that no line was planned for, such as those which show
    /// in which mapping memory is wasted, are made here, so many at once, if the recording is at hand.
    #[must_use]
    pub fn finish(mut self, at_once: usize, host: &Host, progress: Progress<'_>) -> Merged {
        self.name_missing();
        self.name_versions();
        self.drop_repeated();
        let mut groups: BTreeMap<Key, Vec<Entry>> = BTreeMap::new();
        for entry in std::mem::take(&mut self.entries) {
            groups.entry(Key::of(&entry.header)).or_default().push(entry);
        }
        let mut groups: Vec<Vec<Entry>> = groups.into_values().collect();
        groups.sort_by_cached_key(|entries| entries.iter().map(|entry| entry.path.clone()).min());
        let mut programs = Vec::new();
        let all = groups.len();
        for (done, entries) in groups.into_iter().enumerate() {
            progress(done, all);
            programs.extend(self.program(entries, at_once, host));
        }
        progress(all, all);
        Merged { programs, remarks: self.remarks, is_lacking: self.is_lacking }
    }

    /// The lines of each sweep that are not there.
    fn name_missing(&mut self) {
        let mut sweeps: BTreeMap<(String, u64), BTreeSet<u64>> = BTreeMap::new();
        for number in self.entries.iter().filter_map(|entry| entry.number.as_ref()) {
            sweeps.entry((number.sweep.clone(), number.of)).or_default().insert(number.line);
        }
        for ((sweep, of), lines) in sweeps {
            let mut gaps: Vec<String> = Vec::new();
            let mut next = 1;
            for line in lines.into_iter().chain([of + 1]) {
                match line - next {
                    0 => {}
                    1 => gaps.push(next.to_string()),
                    _ => gaps.push(format!("{next}-{}", line - 1)),
                }
                next = line + 1;
            }
            if !gaps.is_empty() {
                self.is_lacking = true;
                let (word, verb) =
                    if gaps.len() == 1 && !gaps[0].contains('-') { ("line", "is") } else { ("lines", "are") };
                let gaps = gaps.join(", ");
                self.remarks.push(format!(
                    "{word} {gaps} of {of} of sweep {sweep} {verb} missing: run again what it printed there"
                ));
            }
        }
    }

    fn name_versions(&mut self) {
        let versions: BTreeSet<&str> = self.entries.iter().map(|entry| entry.quire.as_str()).collect();
        if versions.len() > 1 {
            let versions: Vec<&str> = versions.into_iter().collect();
            self.remarks.push(format!("the lines are of several versions of quire: {}", versions.join(", ")));
        }
    }

    /// Of lines that ask for the same of one recording one stays, whatever their order: one that found more.
    fn drop_repeated(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by(|one, other| {
            let key = |entry: &Entry| (entry.is_misfit, entry.digest.clone(), entry.at.clone());
            key(one).cmp(&key(other))
        });
        let mut kept: BTreeMap<(Identity, String), usize> = BTreeMap::new();
        for entry in entries {
            let key = (entry.identity.clone(), format!("{:?}", entry.request));
            let Some(&place) = kept.get(&key) else {
                kept.insert(key, self.entries.len());
                self.entries.push(entry);
                continue;
            };
            let first = &mut self.entries[place];
            let (at, other) = (entry.at.told(), first.at.told());
            let remark = if entry.digest == first.digest {
                format!("{at}: repeated, with the result of {other}; counted once")
            } else if entry.is_misfit && !first.is_misfit {
                format!("{at}: repeated; it did not fit there, and did for {other}, which counts")
            } else {
                self.is_lacking = true;
                format!("{at}: repeated, with another result than {other}, which counts")
            };
            self.remarks.push(remark);
            // A recording that lies elsewhere on another machine has one path.
            if entry.path < first.path {
                first.path = entry.path;
            }
        }
    }

    fn remark(&mut self, lacking: bool, line: String) {
        self.is_lacking |= lacking;
        self.remarks.push(line);
    }

    /// Advice for the program of these lines.
    fn program(&mut self, mut entries: Vec<Entry>, at_once: usize, host: &Host) -> Option<Program> {
        let told = name(&entries.first()?.header);
        let kernel = kernel_of(&entries);
        let before = entries.len();
        entries.retain(|entry| entry.request.kernel == kernel);
        if entries.len() < before {
            let other = before - entries.len();
            let line = format!(
                "{told}: {other} lines take another amount of memory for what the kernel keeps; passed over"
            );
            self.remark(true, line);
        }
        let tries = tries_of(&entries);
        let sources = match self.sources(&entries, &tries) {
            Ok(sources) => sources,
            Err(error) => {
                self.remark(true, format!("{told}: no advice: {error}"));
                return None;
            }
        };
        let settings = self.settings(&told, &sources, kernel, &entries)?;
        let first = for_settings(&sources).first().and_then(|&place| sources.get(place))?;
        let (first, identity) = (first.path.clone(), first.stored()?.identity().clone());
        let asking = Asking { sources: &sources, settings, tries: &tries, kernel };
        let found = asking.predict(at_once, host, &|_, _| {});
        for source in &sources {
            for (point, why) in source.stored().map(Stored::missed).unwrap_or_default() {
                let asked = Request::of(&point, Vec::new()).told();
                self.remark(true, format!("{told}: not known: {asked} of {}: {why}", source.path.display()));
            }
        }
        match found {
            Ok(prediction) => Some(Program { prediction, first, identity }),
            Err(error) => {
                self.remark(true, format!("{told}: no advice: {error}"));
                None
            }
        }
    }

    /// The recordings of the lines, in order, with the results.
    fn sources(&mut self, entries: &[Entry], tries: &Tries) -> Result<Vec<Source>, AdviseError> {
        struct Recording {
            path: PathBuf,
            header: TraceHeader,
            events: u64,
            results: Vec<(Point, Found)>,
        }
        let mut recordings: BTreeMap<&Identity, Recording> = BTreeMap::new();
        for entry in entries {
            match entry.at.read() {
                Ok(line) if line.identity == entry.identity && line.digest == entry.digest => {
                    let recording = recordings.entry(&entry.identity).or_insert_with(|| Recording {
                        path: entry.path.clone(),
                        header: line.header,
                        events: line.events,
                        results: Vec::new(),
                    });
                    if entry.path < recording.path {
                        recording.path.clone_from(&entry.path);
                    }
                    recording.results.extend(line.found);
                }
                Ok(_) => self.remark(true, format!("{}: changed while it was read", entry.at.told())),
                Err(why) => self.remark(true, why),
            }
        }
        let percents: BTreeSet<u32> = tries.percents.iter().copied().collect();
        let source = |(identity, recording): (&Identity, Recording)| {
            let Recording { path, header, events, results } = recording;
            let stored = Stored::new(identity.clone(), results, percents.clone());
            Source::with_results(path, header, events, stored)
        };
        in_order(recordings.into_iter().map(source).collect())
    }

    /// The settings of which each recording has its results, in the order of the grid. None if the present
    /// one, or that without huge pages, is not among them.
    fn settings(
        &mut self,
        told: &str,
        sources: &[Source],
        kernel: Option<KernelCosts>,
        entries: &[Entry],
    ) -> Option<Vec<Setting>> {
        let header = &sources.first()?.header;
        let needed: Vec<&Source> =
            for_settings(sources).iter().filter_map(|&place| sources.get(place)).collect();
        let has = |source: &Source, setting: &Setting| {
            source.stored().is_some_and(|stored| lives(setting, kernel).all(|point| stored.has(&point)))
        };
        let named = entries.iter().filter(|entry| entry.request.asked == Asked::Life);
        let named: BTreeSet<&str> = named.map(|entry| entry.request.setting.as_str()).collect();
        let plain = grid(header);
        let mut all: Vec<Setting> = plain.clone();
        let place = |name: &str| plain.iter().position(|setting| name.starts_with(&setting.name));
        let mut others: Vec<&str> =
            named.iter().copied().filter(|name| plain.iter().all(|setting| setting.name != *name)).collect();
        others.sort_by_key(|name| (place(name), *name));
        all.extend(others.into_iter().filter_map(|name| Setting::named(header, name)));
        let mut settings = Vec::new();
        for setting in all {
            let is_needed = setting.is_present || setting.name == NEVER;
            let lacking = needed.iter().find(|source| !has(source, &setting));
            match lacking {
                None => settings.push(setting),
                Some(_) if !is_needed && !named.contains(setting.name.as_str()) => {}
                Some(source) => {
                    let (name, path) = (&setting.name, source.path.display());
                    if is_needed {
                        let line = format!(
                            "{told}: no advice: {path} has no result under {name}, with which the others are compared"
                        );
                        self.remark(true, line);
                        return None;
                    }
                    self.remark(true, format!("{told}: {name} is left out: {path} has no result under it"));
                }
            }
        }
        Some(settings)
    }
}

/// What the kernel was taken to keep, in most lines for settings.
fn kernel_of(entries: &[Entry]) -> Option<KernelCosts> {
    let mut counts: Vec<(Option<KernelCosts>, usize)> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.request.asked == Asked::Life) {
        match counts.iter_mut().find(|(kernel, _)| *kernel == entry.request.kernel) {
            Some((_, count)) => *count += 1,
            None => counts.push((entry.request.kernel, 1)),
        }
    }
    // However the lines are ordered.
    let key = |kernel: &Option<KernelCosts>| kernel.map(|it| (it.thread, it.process, it.mapping));
    counts.into_iter().max_by_key(|(kernel, count)| (*count, key(kernel))).and_then(|(kernel, _)| kernel)
}

/// The limits that the lines are for.
fn tries_of(entries: &[Entry]) -> Tries {
    let (mut percents, mut amounts) = (BTreeSet::new(), BTreeSet::<Amount>::new());
    let mut swaps: BTreeSet<LimitSwap> = BTreeSet::new();
    for Entry { request, .. } in entries {
        let Asked::Less(less) = &request.asked else { continue };
        if request.serves.is_empty() {
            continue;
        }
        swaps.extend(&request.serves);
        match less.meant {
            Meant::Percent(percent) => _ = percents.insert(percent),
            Meant::Amount(amount) => _ = amounts.insert(amount),
        }
    }
    Tries {
        percents: percents.into_iter().rev().collect(),
        amounts: amounts.into_iter().collect(),
        swaps: swaps.into_iter().collect(),
    }
}
