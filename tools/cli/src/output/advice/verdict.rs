//! The verdict in sentences, with the commands that follow from it.

use super::change::percent;
use super::limits;
use crate::output::quantity::{count, size};
use quire_advise::{FOLDER, Gain, Misfit, Prediction, Row, Setting};

/// The share of the peak from which on the place of waste is reported.
const NOTABLE_WASTE: f64 = 0.02;

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
    lines.extend(limits::verdict(&prediction.limits));
    lines.push(
        "Not predicted: time saved by fewer TLB misses, other programs on the host, a host whose memory is \
         fragmented; sockets, files in memory beyond what is used through a mapping, and memory that devices \
         or guests fill."
            .to_owned(),
    );
    lines
}

/// What the verdict says about the setting at `place` among the rows, if it names it.
pub(super) fn why(prediction: &Prediction, place: usize) -> Option<String> {
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
