//! The line of JSON that a command line of a sweep writes. docs/schema/sweep.json describes it.

use super::check::{check, is_header, is_of, is_possible, is_request};
use super::request::{Number, Request};
use crate::error::AdviseError;
use crate::found::Found;
use crate::identity::{Identity, digest, from_hexadecimal, hexadecimal};
use crate::less::{LimitOutcome, PeakFound};
use crate::outcome::Outcome;
use crate::point::Point;
use crate::source::anywhere;
use quire_replay::{MappingLife, Replay, ReplayOptions};
use quire_trace::format::{FORMAT_VERSION, TraceHeader};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The version of the form of a line.
const VERSION: u32 = 2;
/// What each line begins with.
pub const LINE_START: &str = "{\"sweep\":";
/// What stands before the digits of its sum, and how many these are.
const SUM: &str = ",\"sum\":\"";
const SUM_DIGITS: usize = 16;

/// A line as JSON has it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    sweep: u32,
    quire: String,
    number: Option<Number>,
    recording: Recording,
    asked: Request,
    found: Vec<FoundText>,
    /// Digits of a digest of what stands before it: what was changed on its way is found.
    #[serde(skip_serializing)]
    sum: String,
}

/// The recording.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Recording {
    pub(super) file: String,
    /// The bytes of its path, if these are no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    pub(super) sha256: String,
    events: u64,
    /// The version of the format of recordings that the header is in.
    format: u16,
    header: String,
}

/// What a replay found.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FoundText {
    Life(Box<Outcome>),
    Misfit(String),
    PeakUse(PeakFound),
    Mappings(Vec<MappingLife>),
    Less(Box<LimitOutcome>),
}

impl From<Found> for FoundText {
    fn from(found: Found) -> Self {
        match found {
            Found::Life(Ok(outcome)) => Self::Life(outcome),
            Found::Life(Err(finding)) => Self::Misfit(finding),
            Found::PeakUse(found) => Self::PeakUse(found),
            Found::Mappings(mappings) => Self::Mappings(mappings),
            Found::Less(found) => Self::Less(found),
        }
    }
}

impl From<FoundText> for Found {
    fn from(found: FoundText) -> Self {
        match found {
            FoundText::Life(outcome) => Self::Life(Ok(outcome)),
            FoundText::Misfit(finding) => Self::Life(Err(finding)),
            FoundText::PeakUse(found) => Self::PeakUse(found),
            FoundText::Mappings(mappings) => Self::Mappings(mappings),
            FoundText::Less(found) => Self::Less(found),
        }
    }
}

/// Why a line is no result.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// It does not begin as one does.
    #[error("no line of `quire sweep`")]
    Foreign,
    /// It is of another version.
    #[error("a line of version {0} of `quire sweep`, of which this one reads {VERSION}")]
    Version(u64),
    /// It does not end as one does.
    #[error("cut short: it has no end")]
    Cut,
    /// Its sum is another one.
    #[error("changed since it was written: its sum is wrong")]
    Changed,
    /// Its sum is right, and it is still none: where, and what is wrong.
    #[error("no result: {0}")]
    Malformed(String),
}

/// A result.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: Option<Number>,
    /// The version of the program that wrote it.
    pub(super) quire: String,
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) header: TraceHeader,
    pub(super) events: u64,
    pub(super) request: Request,
    /// Each replay.
    pub(super) found: Vec<(Point, Found)>,
    /// A digest of what was found: of a line that is there twice it is the same.
    pub(super) digest: String,
}

impl Line {
    /// Of this text, without the end of the line.
    pub(super) fn read(text: &str) -> Result<Self, LineError> {
        let rest = text.strip_prefix(LINE_START).ok_or(LineError::Foreign)?;
        let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let version: u64 = rest[..digits].parse().map_err(|_| LineError::Foreign)?;
        if version != u64::from(VERSION) {
            return Err(LineError::Version(version));
        }
        let (before, sum) = text.rsplit_once(SUM).ok_or(LineError::Cut)?;
        let sum = sum.strip_suffix("\"}").filter(|sum| sum.len() == SUM_DIGITS).ok_or(LineError::Cut)?;
        if digest(before.as_bytes()).get(..SUM_DIGITS) != Some(sum) {
            return Err(LineError::Changed);
        }
        let read: Text =
            serde_json::from_str(text).map_err(|error| LineError::Malformed(error.to_string()))?;
        if read.sum != sum {
            return Err(LineError::Changed);
        }
        let found = before.split_once(",\"found\":").map_or("", |(_, found)| found);
        Self::of(read, digest(found.as_bytes())).map_err(LineError::Malformed)
    }

    fn of(text: Text, digest: String) -> Result<Self, String> {
        let Recording { file, path, sha256, events, format, header } = text.recording;
        let wrong = |what: &str| format!("its {what} is none");
        let path = match path {
            Some(digits) => from_hexadecimal(&digits).map(OsString::from_vec).ok_or_else(|| wrong("path"))?,
            None => file.into(),
        };
        let identity = Identity::of_digits(&sha256).ok_or_else(|| wrong("sha256"))?;
        let header = from_hexadecimal(&header).ok_or_else(|| wrong("header"))?;
        let header = TraceHeader::from_bytes(&header, format)?;
        is_header(&header)?;
        if !is_request(&text.asked) || text.number.as_ref().is_some_and(|number| !number.is_one()) {
            return Err("nothing that a sweep asks for".to_owned());
        }
        let points = text.asked.points(&header);
        let points = points.ok_or_else(|| format!("no such setting: {}", text.asked.setting))?;
        let found: Vec<Found> = text.found.into_iter().map(Found::from).collect();
        if found.len() != points.len() || !found.iter().all(|found| is_of(found, &text.asked)) {
            return Err("what was found is not what was asked".to_owned());
        }
        if !found.iter().all(is_possible) {
            return Err("figures that no replay has".to_owned());
        }
        Ok(Self {
            number: text.number,
            quire: text.quire,
            path: path.into(),
            identity,
            header,
            events,
            request: text.asked,
            found: points.into_iter().zip(found).collect(),
            digest,
        })
    }

    /// Whether the program did not fit into the memory of the machine that it was replayed on.
    pub(super) fn is_misfit(&self) -> bool {
        self.found.iter().any(|(_, found)| matches!(found, Found::Life(Err(_))))
    }
}

/// Makes the replays of a command line, of the recording in `file`, whose SHA-256 has to begin with the
/// digits `contents`, and returns the line for it, without its end.
///
/// # Errors
///
/// [`AdviseError`]; where this host has too little memory for the replay, too: what it would find is another
/// result.
pub fn run(
    file: &Path,
    request: &Request,
    number: Option<Number>,
    contents: Option<&str>,
) -> Result<String, AdviseError> {
    let unread = |why: String| AdviseError::Unsuited(file.to_path_buf(), why);
    check(request)?;
    let identity = Identity::of_file(file).map_err(|error| unread(error.to_string()))?;
    if !contents.is_none_or(|digits| identity.digits().starts_with(digits)) {
        return Err(unread("not the recording that the line was printed for: sweep it again".to_owned()));
    }
    let replay = Replay::open(file, ReplayOptions::default())?;
    let header = replay.header()?;
    is_header(&header).map_err(unread)?;
    let points = request.points(&header).ok_or_else(|| {
        unread(format!("the host that it was recorded on has no setting {}", request.setting))
    })?;
    let mut found = Vec::new();
    for point in &points {
        let report = anywhere(file, &replay, point)?;
        found.push(FoundText::from(Found::of(point, report, header.pressure)));
    }
    let path = file.as_os_str();
    let text = Text {
        sweep: VERSION,
        quire: env!("CARGO_PKG_VERSION").to_owned(),
        number,
        recording: Recording {
            file: path.to_string_lossy().into_owned(),
            path: path.to_str().is_none().then(|| hexadecimal(path.as_bytes())),
            sha256: identity.digits().to_owned(),
            events: replay.needs().events(),
            format: FORMAT_VERSION,
            header: hexadecimal(&header.to_bytes()),
        },
        asked: request.clone(),
        found,
        sum: String::new(),
    };
    let text = serde_json::to_string(&text).map_err(|error| unread(error.to_string()))?;
    Ok(with_sum(&ascii(&text)))
}

/// JSON in ASCII: what is none is in strings only. So nothing that prints or passes it on changes it.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter.is_ascii() && letter != '\x7f' {
            text.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // To a String nothing fails.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// A line with its sum, of the object without it.
fn with_sum(object: &str) -> String {
    let before = object.strip_suffix('}').unwrap_or(object);
    let sum = digest(before.as_bytes());
    format!("{before}{SUM}{}\"}}", &sum[..SUM_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Asked;
    use crate::predict::open;
    use quire_replay::KernelCosts;

    fn recording(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name)
    }

    fn of(setting: &str, asked: Asked) -> String {
        of_file(&recording("git-log.qtr"), setting, asked)
    }

    fn of_file(file: &Path, setting: &str, asked: Asked) -> String {
        let kernel = Some(KernelCosts::default());
        let (setting, serves) = (setting.to_owned(), Vec::new());
        let request = Request { setting, phase: None, kernel, asked, serves, need: None };
        run(file, &request, None, None).unwrap()
    }

    /// What is read again is what the replay found: nothing of it is lost on its way.
    #[test]
    fn a_line_holds_what_the_replay_found() {
        let path = recording("git-log.qtr");
        let [source] = &open(std::slice::from_ref(&path)).unwrap()[..] else { panic!("one recording") };
        for (setting, asked) in
            [("thp=always", Asked::Life), ("thp=never", Asked::PeakUse), ("thp=never", Asked::Mappings(700))]
        {
            let text = of(setting, asked);
            let line = Line::read(&text).unwrap();
            assert_eq!((&line.path, &line.header, line.events), (&path, &source.header, source.events));
            for (point, found) in &line.found {
                let now = source.found(point).unwrap();
                // Of samples four fields are kept.
                let mut now = FoundText::from(now);
                if let FoundText::Life(outcome) = &mut now {
                    for sample in &mut outcome.life.samples {
                        *sample = quire_replay::LifeSample {
                            time_ns: sample.time_ns,
                            event: sample.event,
                            anonymous: sample.anonymous,
                            page_tables: sample.page_tables,
                            ..Default::default()
                        };
                    }
                }
                assert_eq!(format!("{:?}", Found::from(now)), format!("{found:?}"));
            }
            assert!(text.is_ascii() && !text.contains('\n'));
        }
    }

    #[test]
    fn what_no_line_asks_for_is_refused() {
        let kernel = Some(KernelCosts { thread: u64::MAX, ..KernelCosts::default() });
        for (kernel, phase) in [(kernel, None), (None, Some(0))] {
            let (setting, serves) = ("thp=never".to_owned(), Vec::new());
            let request = Request { setting, phase, kernel, asked: Asked::Life, serves, need: None };
            let refused = run(&recording("git-log.qtr"), &request, None, None);
            assert!(matches!(refused, Err(AdviseError::NotAsked(_))), "{refused:?}");
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        let text = of("thp=never", Asked::Life);
        assert_eq!(Line::read("").unwrap_err(), LineError::Foreign);
        assert_eq!(Line::read("{\"sweep\":x}").unwrap_err(), LineError::Foreign);
        assert_eq!(Line::read("{\"sweep\":7,\"new\":[]}").unwrap_err(), LineError::Version(7));
        for end in [LINE_START.len() + 1, text.len() / 2, text.len() - 1] {
            assert_eq!(Line::read(&text[..end]).unwrap_err(), LineError::Cut, "{end}");
        }
        let edited = text.replacen("\"faults\":", "\"faults\":1", 1);
        assert_eq!(Line::read(&edited).unwrap_err(), LineError::Changed);
    }

    /// One that edits a line can make its sum right. Nothing in it leads to a panic, here or in the advice:
    /// each number is as large as it can be, or none.
    #[test]
    fn edited_lines_with_a_right_sum_do_no_harm() {
        // A recording that is gone: nothing is replayed to make up for what the lines lack.
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(recording("git-log.qtr"), copy.path()).unwrap();
        let [always, never, present] =
            ["thp=always", "thp=never", "thp=madvise"].map(|name| of_file(copy.path(), name, Asked::Life));
        drop(copy);
        let object = always.rsplit_once(SUM).unwrap().0;
        let bytes = object.as_bytes();
        // The first digit of each number.
        let starts =
            (1..bytes.len()).filter(|&at| bytes[at].is_ascii_digit() && b":[,".contains(&bytes[at - 1]));
        let (mut read, mut refused) = (0, 0);
        for (nth, start) in starts.enumerate() {
            // Columns of samples are long, and all alike.
            if nth > 150 && nth % 97 != 0 {
                continue;
            }
            let end = start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            for number in ["0", "1", "281474976710656", "18446744073709551615", "-1", "\"x\"", "[]"] {
                let text = with_sum(&format!("{}{number}{}}}", &object[..start], &object[end..]));
                match Line::read(&text) {
                    Err(_) => refused += 1,
                    Ok(_) => {
                        read += 1;
                        let file = tempfile::NamedTempFile::new().unwrap();
                        std::fs::write(file.path(), format!("{text}\n{never}\n{present}\n")).unwrap();
                        let mut merge = crate::sweep::Merge::default();
                        merge.read(file.path());
                        let merged = merge.finish(1, &crate::host::Host::default(), &|_, _| {});
                        assert!(merged.programs.len() <= 2);
                    }
                }
            }
        }
        assert!(read > 50 && refused > 50, "{read} {refused}");
    }
}
