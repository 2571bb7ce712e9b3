//! The objects of `quire advise --json`.

use super::range::{put, put_known, put_measured};
use super::remarks::remarks;
use super::verdict::{verdict, why};
use super::{forks, limits};
use quire_advise::{AtPeak, Gain, LimitValidation, Measure, Prediction, Row, Setting, Validation};
use serde_json::{Map, Value, json};

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
    objects.extend(limits::objects(&prediction.limits, prediction.own_seconds, limited));
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
                    "shared": of(Measure::Shared),
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
        "enough_memory": limits::enough(&prediction.limits),
        "swaps_left_out": limits::swaps_left_out(&prediction.limits),
        "shared_after_fork": prediction.limits.shared_after_fork,
    }));
    objects
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
        put_known(&mut object, name, estimate);
    }
    object.insert("fork".to_owned(), Value::Object(forks::object(&row.fork)));
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

/// The size as people write it: 64K, 2M.
fn short_size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}
