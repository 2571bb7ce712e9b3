//! What `quire advise` prints.

use super::table::{losses, shorten};
use super::{advice_forks, advice_limits, say, say_line, say_wrapped, spark};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use quire_advise::{
    AtPeak, FOLDER, Figure, Gain, LimitValidation, Measure, Misfit, Near, Prediction, ProcessRow, Range, Row,
    Setting, Validation,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Columns that a narrow table lacks: the range, the largest process, the mean and the end.
const NARROW_LACKS: [usize; 4] = [2, 3, 4, 5];
/// The share of the peak from which on the place of waste is reported.
const NOTABLE_WASTE: f64 = 0.02;
/// Differences from Linux that are told with the verdict.
const MOST_DIFFERENCES: usize = 5;
/// Smaller changes are ignored.
const NO_CHANGE: f64 = 0.005;

/// Prints the tables and the verdict, `drawn` with memory over time as a line of blocks.
pub(crate) fn print(prediction: &Prediction, drawn: bool) {
    let Prediction { command, recordings, seconds, differences, exactness, .. } = prediction;
    let of = if *recordings == 1 { "a recording".to_owned() } else { format!("{recordings} recordings") };
    say(format_args!(
        "{}: {of}, {seconds:.1} s; {differences} differences from Linux\n{exactness}",
        shorten(command, 60)
    ));
    for (_, what) in losses(prediction.lost, prediction.unheard) {
        say_wrapped(&format!("But {what}."));
    }
    say("");
    say(table(prediction, true, drawn));
    advice_forks::print(prediction);
    advice_limits::print(&prediction.limits, prediction.own_seconds);
    print_verdict(prediction);
    remarks(prediction).iter().for_each(|line| say_wrapped(line));
}

/// As [`print()`], with the rows that the verdict names, and some that most people ask for.
pub(crate) fn print_short(prediction: &Prediction) {
    let verdict = &prediction.verdict;
    let named: Vec<usize> = [&verdict.least_memory, &verdict.fewest_faults, &verdict.most_memory]
        .into_iter()
        .flatten()
        .map(|gain| gain.place)
        .collect();
    let asked = ["thp=never", "thp=madvise", "thp=always", "mthp=64K"];
    let is_shown = |place: usize, setting: &Setting| {
        place == 0 || named.contains(&place) || asked.contains(&setting.name.as_str())
    };
    let each = prediction.rows.iter().zip(&prediction.changes).enumerate();
    let shown = each.filter(|(place, ((setting, _), _))| is_shown(*place, setting));
    let mut short = prediction.clone();
    (short.rows, short.changes) = shown.map(|(_, (row, change))| (row.clone(), *change)).unzip();
    say(table(&short, false, false));
    print_verdict(prediction);
}

fn print_verdict(prediction: &Prediction) {
    for line in verdict(prediction) {
        // Commands are to be copied.
        if line.starts_with(' ') {
            say_line(line);
        } else {
            say_wrapped(&line);
        }
    }
}

/// Bytes with a unit, three digits.
pub(super) fn size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        bytes if bytes >= 1e9 => (bytes / f64::from(1 << 30), "GiB"),
        bytes if bytes >= 1e6 => (bytes / f64::from(1 << 20), "MiB"),
        bytes => (bytes / f64::from(1 << 10), "KiB"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A count with a unit.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value >= 9.95e6 => format!("{:.0} M", value / 1e6),
        value if value >= 9.95e5 => format!("{:.1} M", value / 1e6),
        value if value >= 9.95e3 => format!("{:.0} k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// A change in percent, with its sign; nothing where there is none.
fn percent(change: f64) -> String {
    if change.abs() < NO_CHANGE { String::new() } else { format!(" {:+.0} %", change * 100.0) }
}

/// A row a setting; `all` columns, or those that fit on a narrow screen, and `drawn` one with memory over
/// time.
fn table(prediction: &Prediction, all: bool, drawn: bool) -> Table {
    const HEADINGS: [&str; 11] = [
        "setting",
        "peak anonymous",
        "range",
        "largest\nprocess",
        "mean",
        "at the\nend",
        "page\ntables",
        "faults",
        "by\n2 MiB",
        "large\nfolios",
        "never\ntouched",
    ];
    let shown = |column: &usize| all || !NARROW_LACKS.contains(column);
    let chosen = |cells: [String; HEADINGS.len()]| {
        let cells = cells.into_iter().enumerate().filter(|(column, _)| shown(column));
        cells.map(|(_, cell)| cell).collect::<Vec<_>>()
    };
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    let over_time = drawn.then(|| "in memory\nover time".to_owned());
    table.set_header(chosen(HEADINGS.map(str::to_owned)).into_iter().chain(over_time));
    let most = prediction.lives.iter().flatten().map(|sample| sample.anonymous).max().unwrap_or(0);
    for (place, ((setting, row), change)) in prediction.rows.iter().zip(&prediction.changes).enumerate() {
        let share = |range: Range| format!("{:.0} %", range.median * 100.0);
        let peak = row.peak_anonymous;
        let over_time = prediction.lives.get(place).filter(|_| drawn).map(|samples| {
            let values: Vec<(u64, u64)> =
                samples.iter().map(|sample| (sample.time_ns, sample.anonymous)).collect();
            spark::over_time(&values, most)
        });
        let cells = chosen([
            format!("{}{}", setting.name, note(setting, row)),
            format!("{}{}", size(peak.median), percent(change.memory[Measure::Charged].share.median)),
            if peak.spread() == 0.0 { String::new() } else { format!("+-{}", size(peak.spread())) },
            size(row.peak_largest.median),
            size(row.mean_anonymous.median),
            size(row.end_anonymous.median),
            size(row.peak_page_tables.median),
            format!("{}{}", count(row.faults.median), percent(change.faults.share.median)),
            share(row.huge_share),
            share(row.large_share),
            size(row.waste.median),
        ]);
        table.add_row(cells.into_iter().chain(over_time));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// What stands beside the name of a setting.
fn note(setting: &Setting, row: &Row) -> &'static str {
    match (setting.is_present, row.marked) {
        (true, _) => " (now)",
        (false, true) => " (differs)",
        (false, false) => "",
    }
}

/// What the verdict says about the setting at `place` among the rows, if it names it.
fn why(prediction: &Prediction, place: usize) -> Option<String> {
    let (rows, verdict) = (&prediction.rows, &prediction.verdict);
    let (_, now) = rows.first()?;
    let (setting, row) = rows.get(place)?;
    let name = &setting.name;
    let is_here = |gain: &&Gain| gain.place == place;
    if let Some(gain) = verdict.least_memory.as_ref().filter(is_here) {
        return Some(format!("{name} is worth trying. {}{}", saves(gain, now, row), wasted(prediction, 0)));
    }
    if let Some(gain) = verdict.fewest_faults.as_ref().filter(is_here) {
        let (change, (_, worst)) = (&gain.change, gain.change.worst());
        let memory = percent(worst.share.median);
        return Some(format!(
            "{name} is worth trying for speed: {} page faults instead of {} save an estimated {:.0} % of the {} \
             ({:.0} to {:.0} %{}), for{} memory.{}{}",
            count(row.faults.median),
            count(now.faults.median),
            change.time.median * 100.0,
            if prediction.processor_seconds.is_some() { "processor time" } else { "time" },
            change.time_range[0] * 100.0,
            change.time_range[1] * 100.0,
            if row.estimate_ns.is_none() { "; quire calibrate narrows that" } else { "" },
            if memory.is_empty() { " the same" } else { &memory },
            khugepaged(row),
            wasted(prediction, place),
        ));
    }
    let gain = verdict.most_memory.as_ref().filter(is_here)?;
    let (measure, rise) = gain.rise()?;
    let untouched = if row.waste.median > NOTABLE_WASTE * row.peak_anonymous.median {
        format!(", and {} of its memory is never touched", size(row.waste.median))
    } else {
        String::new()
    };
    Some(format!(
        "Beware of {name}: it takes {} more {} ({:+.0} %){untouched}.{}",
        size(rise.amount.median),
        measure.name(),
        rise.share.median * 100.0,
        wasted(prediction, place),
    ))
}

/// The mappings in which a setting wastes most, if it wastes notably.
fn wasted(prediction: &Prediction, place: usize) -> String {
    let (setting, row) = &prediction.rows[place];
    let wastes = prediction.wastes.get(&place).map_or(&[][..], Vec::as_slice);
    let most = wastes.iter().filter(|waste| waste.bytes as f64 > row.waste.median / 4.0);
    let told: Vec<String> =
        most.map(|waste| format!("{} ({})", waste.mapping, size(waste.bytes as f64))).collect();
    if told.is_empty() || row.waste.median < NOTABLE_WASTE * row.peak_anonymous.median {
        return String::new();
    }
    format!(" Most that {} leaves untouched is in {}.", setting.name, told.join(", "))
}

/// What khugepaged does for a setting.
fn khugepaged(row: &Row) -> String {
    match row.khugepaged_ns {
        Some(cost) if cost.median > 0.0 => {
            format!(" khugepaged takes an estimated {:.1} ms for it, in its own thread.", cost.median / 1e6)
        }
        _ => String::new(),
    }
}

/// The verdict in sentences.
pub(crate) fn verdict(prediction: &Prediction) -> Vec<String> {
    let rows = &prediction.rows;
    let Some((present, _)) = rows.first() else { return Vec::new() };
    if let Some(why) = &prediction.unreliable {
        // What the kernel brings in is not recorded the next time, either.
        let again = if prediction.lost > 0 { " Record it again." } else { "" };
        return vec![format!("No verdict, and no limit: {why}. What is above is too low.{again}")];
    }
    let verdict = &prediction.verdict;
    let mut lines = Vec::new();
    if verdict.nothing_changes() {
        lines.push(format!(
            "Verdict: nothing changes. No setting takes notably less memory than {} does, or saves page faults \
             that matter.",
            present.name
        ));
    }
    let mut tried: Vec<usize> = [&verdict.least_memory, &verdict.fewest_faults]
        .into_iter()
        .flatten()
        .map(|gain| gain.place)
        .collect();
    tried.dedup();
    for (nth, &place) in tried.iter().enumerate() {
        let word = if nth == 0 { "Verdict" } else { "Also" };
        lines.extend(why(prediction, place).map(|why| format!("{word}: {why}")));
        lines.extend(how(&rows[place].0, present));
    }
    if let Some(gain) = verdict.most_memory.as_ref().filter(|gain| !tried.contains(&gain.place)) {
        lines.extend(why(prediction, gain.place));
    }
    for Misfit { setting, finding } in prediction.misfits.iter().filter(|it| it.setting.is_of_linux()) {
        lines.push(format!(
            "Beware of {}: it may take more memory than this machine has. Of its replay: {finding}.",
            setting.name
        ));
    }
    let fallbacks: u64 = rows.iter().map(|(_, row)| row.fallbacks).sum();
    if fallbacks > 0 {
        lines.push(format!(
            "The replays had no memory for {fallbacks} large folios: figures are too low there."
        ));
    }
    lines.extend(advice_limits::verdict(&prediction.limits));
    lines.push(
        "Not predicted: time saved by fewer TLB misses, other programs on the host, a host whose memory is \
         fragmented; sockets, files in memory beyond what is used through a mapping, and memory that devices \
         or guests fill."
            .to_owned(),
    );
    lines
}

/// What is told beside the verdict: how much is needed without swap, which limits are near, and what differs
/// from Linux.
fn remarks(prediction: &Prediction) -> Vec<String> {
    let needs = prediction.unreliable.is_none().then(|| without_swap(prediction));
    let unused = prediction.unreliable.is_none().then(|| unused(prediction));
    let mut lines: Vec<String> = needs.into_iter().chain(unused).collect();
    lines.extend(near(prediction));
    lines.extend(gaps(prediction));
    lines
}

/// What is needed where nothing can be paged out, and of what it consists.
fn without_swap(prediction: &Prediction) -> String {
    let needed = prediction.rows.first().map_or(Range::default(), |(_, row)| row.peak_charge);
    let peak = prediction.at_peak;
    let AtPeak { anonymous, lazily_free, shared, unmapped, page_tables, kernel, .. } = peak;
    let parts = [
        (anonymous, "anonymous"),
        (shared, "shared"),
        (page_tables, "page tables"),
        (kernel, "the kernel's for threads, processes and mappings"),
        (peak.locked_files, "locked pages of files"),
    ];
    let parts = parts.iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<String> = parts.map(|(bytes, name)| format!("{} {name}", size(*bytes as f64))).collect();
    let lazily = match lazily_free {
        0 => String::new(),
        bytes => format!("; {} of it may be freed at once (MADV_FREE)", size(bytes as f64)),
    };
    let gone = match unmapped {
        0 => String::new(),
        bytes => format!(
            "; {} of the shared memory is mapped by no process any more: if its last descriptors are closed, it needs \
             so much less",
            size(bytes as f64)
        ),
    };
    format!(
        "Without swap it needs {}, and what it reads of files: {}{lazily}{gone}.",
        size(needed.max),
        parts.join(", ")
    )
}

/// How much of the memory at the peak is not used again.
fn unused(prediction: &Prediction) -> String {
    match prediction.at_peak.unused {
        None => "How much of its peak is never used again is not known: that needs recordings under \
                 pressure, of all its memory."
            .to_owned(),
        Some([least, most]) if least == most => {
            format!("Of its peak, {} of anonymous memory is never used again.", size(most as f64))
        }
        Some([least, most]) => format!(
            "Of its peak, {} to {} of anonymous memory is never used again: what the recorder left in memory may have \
             been.",
            size(least as f64),
            size(most as f64)
        ),
    }
}

/// The limits of Linux's that processes came near to, a line for each limit.
fn near(prediction: &Prediction) -> Vec<String> {
    let processes = prediction.rows.first().map_or(&[][..], |(_, row)| &row.processes[..]);
    let mut nearest: Vec<(&ProcessRow, &Near)> = Vec::new();
    for (process, near) in
        processes.iter().flat_map(|process| process.near.iter().map(move |near| (process, near)))
    {
        let share = |near: &Near| near.used as f64 / near.most.max(1) as f64;
        match nearest.iter_mut().find(|(_, other)| other.limit == near.limit) {
            Some(known) if share(known.1) < share(near) => *known = (process, near),
            Some(_) => {}
            None => nearest.push((process, near)),
        }
    }
    let line = |(process, near): &(&ProcessRow, &Near)| {
        let of = |value: u64| match near.limit {
            "vm.max_map_count" => format!("{value} mappings"),
            _ => size(value as f64),
        };
        format!("{} came near to {}: {} of {}.", process.program, near.limit, of(near.used), of(near.most))
    };
    nearest.iter().map(line).collect()
}

/// What Quire cannot do and did otherwise than Linux, each with the rows that it touches.
fn gaps(prediction: &Prediction) -> Vec<String> {
    let rows = &prediction.rows;
    let rows_of = |is_there: &dyn Fn(&Row) -> bool| {
        let there: Vec<&str> =
            rows.iter().filter(|(_, row)| is_there(row)).map(|(setting, _)| setting.name.as_str()).collect();
        if there.len() == rows.len() { "all rows".to_owned() } else { there.join(", ") }
    };
    let names: BTreeSet<&String> = rows.iter().flat_map(|(_, row)| row.gaps.keys()).collect();
    let gap = |name: &String| {
        let count = rows.iter().filter_map(|(_, row)| row.gaps.get(name)).max().copied().unwrap_or(0);
        format!(
            "Not built: {name} ({count} times in all replays; {}).",
            rows_of(&|row| row.gaps.contains_key(name))
        )
    };
    let mut lines: Vec<String> = names.into_iter().map(gap).collect();
    // In the order of the recording, those of the present setting first.
    let mut differing: Vec<&String> = Vec::new();
    for what in rows.iter().flat_map(|(_, row)| &row.mismatches) {
        if !differing.contains(&what) {
            differing.push(what);
        }
    }
    let shown = differing
        .iter()
        .take(MOST_DIFFERENCES)
        .map(|what| format!("Differs: {what} ({}).", rows_of(&|row| row.mismatches.contains(what))));
    lines.extend(shown);
    lines
}

/// The memory that a setting saves, by the measure that falls most.
fn saves(gain: &Gain, now: &Row, row: &Row) -> String {
    let Some((measure, saving)) = gain.saving() else { return String::new() };
    format!(
        "It takes {} instead of {} {} ({:+.0} %), with {} page faults instead of {}.",
        size(row.memory(measure).median),
        size(now.memory(measure).median),
        measure.name(),
        saving.share.median * 100.0,
        count(row.faults.median),
        count(now.faults.median),
    )
}

/// The commands that apply a setting and undo it.
fn how(setting: &Setting, present: &Setting) -> Vec<String> {
    let apply = setting.short_commands(present);
    if apply.is_empty() {
        return vec!["  It is a technique of Quire's, not a setting of Linux.".to_owned()];
    }
    let mut lines = vec![
        format!("  As root:  cd {FOLDER}"),
        format!("  Apply:    {apply}"),
        format!("  Undo:     {}", setting.undo(present).concat()),
    ];
    if setting.name == "thp=never" {
        lines.push(
            "  For this program only: let it call prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) before its exec."
                .to_owned(),
        );
    }
    lines
}

/// Adds a figure, and its range if it has one.
pub(super) fn put(object: &mut Map<String, Value>, name: &str, range: Range) {
    object.insert(name.to_owned(), json!(range.median));
    if range.min < range.max {
        object.insert(format!("{name}_range"), json!([range.min, range.max]));
    }
}

/// The size as people write it: 64K, 2M.
fn short_size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}

fn row_object(setting: &Setting, row: &Row) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("setting".to_owned(), json!(setting.name));
    object.insert("present".to_owned(), json!(setting.is_present));
    for (name, range) in [
        ("peak_anonymous", row.peak_anonymous),
        ("peak_largest", row.peak_largest),
        ("peak_mapped", row.peak_mapped),
        ("mean_anonymous", row.mean_anonymous),
        ("end_anonymous", row.end_anonymous),
        ("peak_resident", row.peak_resident),
        ("mean_resident", row.mean_resident),
        ("peak_page_tables", row.peak_page_tables),
        ("peak_charge", row.peak_charge),
        ("shared", row.shared),
        ("kernel", row.kernel),
        ("faults", row.faults),
        ("collapses", row.collapses),
        ("huge_share", row.huge_share),
        ("large_share", row.large_share),
        ("never_touched", row.waste),
    ] {
        put(&mut object, name, range);
    }
    let mut by_size = Map::new();
    for (&size, &faults) in &row.faults_by_size {
        put(&mut by_size, &short_size(size), faults);
    }
    object.insert("faults_by_size".to_owned(), Value::Object(by_size));
    object.insert("fallbacks".to_owned(), json!(row.fallbacks));
    object.insert("differences".to_owned(), json!(row.differences));
    object.insert("marked".to_owned(), json!(row.marked));
    object.insert("gaps".to_owned(), json!(row.gaps));
    for (name, estimate) in [("estimate_ns", row.estimate_ns), ("khugepaged_ns", row.khugepaged_ns)] {
        match estimate {
            Some(estimate) => put(&mut object, name, estimate),
            None => _ = object.insert(name.to_owned(), Value::Null),
        }
    }
    object.insert("fork".to_owned(), Value::Object(advice_forks::object(&row.fork)));
    let processes = row.processes.iter().map(|process| {
        json!({
            "program": process.program,
            "pid": process.pid,
            "peak_anonymous": process.peak_anonymous,
            "peak_page_tables": process.peak_page_tables,
            "near": process
                .near
                .iter()
                .map(|near| json!({ "limit": near.limit, "used": near.used, "most": near.most }))
                .collect::<Vec<_>>(),
        })
    });
    object.insert("processes".to_owned(), processes.collect());
    object
}

/// Adds what the program itself did under the setting.
pub(super) fn put_measured(object: &mut Map<String, Value>, figures: &[Figure], seconds: Range) {
    let (mut measured, mut errors) = (Map::new(), Map::new());
    for figure in figures {
        put(&mut measured, figure.name, figure.measured);
        errors.insert(figure.name.to_owned(), json!(figure.error()));
    }
    put(&mut measured, "seconds", seconds);
    object.insert("measured".to_owned(), Value::Object(measured));
    object.insert("error".to_owned(), Value::Object(errors));
}

/// An object a setting and one a limit, and one for the verdict.
pub(crate) fn objects(
    prediction: &Prediction,
    validations: &[Validation],
    limited: Option<&LimitValidation>,
) -> Vec<Value> {
    let mut objects = Vec::new();
    let recommended = prediction.verdict.recommended().map(|gain| gain.place);
    for (place, (setting, row)) in prediction.rows.iter().enumerate() {
        let mut object = row_object(setting, row);
        object.insert("recommended".to_owned(), json!(recommended == Some(place)));
        object.insert("why".to_owned(), json!(why(prediction, place)));
        if let Some(validation) = validations.iter().find(|validation| validation.setting == setting.name) {
            put_measured(&mut object, &validation.figures, validation.seconds);
        }
        objects.push(Value::Object(object));
    }
    objects.extend(advice_limits::objects(&prediction.limits, prediction.own_seconds, limited));
    let peak = prediction.at_peak;
    let AtPeak { anonymous, lazily_free, shared, unmapped, page_tables, kernel, unused, .. } = peak;
    let rows = &prediction.rows;
    let gain = |gain: Option<&Gain>| {
        gain.zip(rows.first()).map(|(gain, (present, _))| {
            let (setting, change) = (&rows[gain.place].0, &gain.change);
            let of = |measure: Measure| change.memory[measure].share.median;
            json!({
                "setting": setting.name,
                "memory_change": of(Measure::Largest),
                "memory_changes": {
                    "peak_largest": of(Measure::Largest),
                    "peak_mapped": of(Measure::Mapped),
                    "peak_anonymous": of(Measure::Charged),
                    "mean_anonymous": of(Measure::Mean),
                    "end_anonymous": of(Measure::End),
                },
                "faults_change": change.faults.share.median,
                "time_saved_estimate": change.time.median,
                "time_saved_estimate_range": change.time_range,
                "apply": setting.commands(present),
                "undo": setting.undo(present),
            })
        })
    };
    objects.push(json!({
        "verdict": verdict(prediction),
        "remarks": remarks(prediction),
        "command": prediction.command,
        "recordings": prediction.recordings,
        "seconds": prediction.seconds,
        "own_seconds": prediction.own_seconds.min,
        "processor_seconds": prediction.processor_seconds,
        "at_peak": {
            "anonymous": anonymous,
            "lazily_free": lazily_free,
            "shared": shared,
            "unmapped": unmapped,
            "page_tables": page_tables,
            "kernel": kernel,
            "locked_files": peak.locked_files,
            "never_used_again": unused,
        },
        "differences": prediction.differences,
        "lost_faults": prediction.lost,
        "unheard_faults": prediction.unheard,
        "unreliable": prediction.unreliable,
        "misfits": prediction
            .misfits
            .iter()
            .map(|misfit| json!({ "setting": misfit.setting.name, "finding": misfit.finding }))
            .collect::<Vec<_>>(),
        "nothing_changes": prediction.unreliable.is_none() && prediction.verdict.nothing_changes(),
        "least_memory": gain(prediction.verdict.least_memory.as_ref()),
        "fewest_faults": gain(prediction.verdict.fewest_faults.as_ref()),
        "most_memory": gain(prediction.verdict.most_memory.as_ref()),
        "enough_memory": advice_limits::enough(&prediction.limits),
        "swaps_left_out": advice_limits::swaps_left_out(&prediction.limits),
        "shared_after_fork": prediction.limits.shared_after_fork,
    }));
    objects
}

/// A figure of a validation with its range.
fn measured(unit: &str, range: Range) -> String {
    let of = |value: f64| match unit {
        "bytes" => size(value),
        "share" => format!("{:.0} %", value * 100.0),
        _ => count(value),
    };
    if range.spread() == 0.0 || unit == "share" && range.spread() < NO_CHANGE {
        of(range.median)
    } else {
        format!("{} +-{}", of(range.median), of(range.spread()))
    }
}

/// Prints what was predicted beside what the program did.
pub(crate) fn print_validations(validations: &[Validation], limited: Option<&LimitValidation>, runs: u16) {
    say(format_args!("\nMeasured on this host, {runs} runs under each setting:"));
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["setting", "figure", "predicted", "measured", "error"]);
    for Validation { setting, figures, seconds } in validations {
        add_validation(&mut table, setting, figures, *seconds);
    }
    if let Some(LimitValidation { setting, figures, seconds, .. }) = limited {
        add_validation(&mut table, &setting.name(), figures, *seconds);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    say(table);
    if let Some(limited) = limited {
        advice_limits::print_ends(limited, runs);
    }
}

fn add_validation(table: &mut Table, setting: &str, figures: &[Figure], seconds: Range) {
    for figure in figures {
        let error = figure.error();
        table.add_row([
            setting.to_owned(),
            figure.name.replace('_', " "),
            measured(figure.unit, figure.predicted),
            measured(figure.unit, figure.measured),
            error.map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0)),
        ]);
    }
    let time = format!("{:.2} s +-{:.2} s", seconds.median, seconds.spread());
    table.add_row([setting.to_owned(), "run time".to_owned(), String::new(), time, String::new()]);
}
