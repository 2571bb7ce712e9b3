//! What `quire advise --report` draws.

use super::{columns, heat, life, provenance, row};
use crate::output::advice as words;
use quire_advise::{
    Heat, LimitSetting, LimitSwap, LimitValidation, Prediction, Range, Row, Setting, Validation,
};
use quire_measure::Costs;
use quire_report::{Cell, Column, Drawing, Mark, Picture, Section, Unit};
use std::collections::BTreeMap;

/// Settings that most people ask for: they have lines of their own.
const ASKED: [&str; 3] = ["thp=never", "thp=always", "mthp=64K"];

/// The section of a prediction; `heats` are of some of its rows.
pub(crate) fn advice(
    prediction: &Prediction,
    heats: &[(usize, Heat)],
    validations: &[Validation],
    limited: Option<&LimitValidation>,
) -> Section {
    let rows = &prediction.rows;
    let mut pictures = vec![peaks(rows, validations)];
    let lines: Vec<life::Line<'_>> = rows
        .iter()
        .zip(&prediction.lives)
        .enumerate()
        .map(|(place, ((setting, _), samples))| {
            (
                shown(setting),
                samples.as_slice(),
                if is_told(prediction, place) { Mark::Line } else { Mark::Beside },
            )
        })
        .collect();
    pictures.extend(life::over_time(&lines));
    for (nth, (place, found)) in heats.iter().enumerate() {
        let of = format!("under {}", shown(&rows[*place].0));
        pictures.push(heat::picture(&format!("addresses-over-time-{}", nth + 1), &of, found));
    }
    for (nth, (place, wastes)) in
        prediction.wastes.iter().filter(|(_, wastes)| !wastes.is_empty()).enumerate()
    {
        let wastes: Vec<(String, f64)> =
            wastes.iter().map(|waste| (waste.mapping.clone(), waste.bytes as f64)).collect();
        let of = format!("under {}", shown(&rows[*place].0));
        pictures.push(life::waste(&format!("waste-by-mapping-{}", nth + 1), &of, &wastes));
    }
    let faults: Vec<life::FaultRow> = rows
        .iter()
        .map(|(setting, row)| {
            let counts: BTreeMap<u64, f64> =
                row.faults_by_size.iter().map(|(&size, faults)| (size, faults.median)).collect();
            (shown(setting), counts)
        })
        .collect();
    pictures.push(life::latency(&faults, Costs::kept().as_ref()));
    pictures.extend(major_faults(prediction, limited));
    pictures.extend(measured(validations, limited));

    let mut provenance = provenance(&prediction.header, prediction.lost, prediction.differences);
    provenance.insert(1, ("Recordings".to_owned(), prediction.recordings.to_string()));
    provenance.insert(2, ("Recorded time".to_owned(), Unit::Seconds.text(prediction.seconds)));
    Section {
        title: prediction.command.clone(),
        verdict: words::verdict(prediction),
        pictures,
        provenance,
        objects: words::objects(prediction, validations, limited),
    }
}

fn shown(setting: &Setting) -> String {
    format!("{}{}", setting.name, if setting.is_present { " (now)" } else { "" })
}

/// Whether a row is drawn differently from the others: the present one, those that the verdict names, and
/// some that most people ask for.
fn is_told(prediction: &Prediction, place: usize) -> bool {
    let verdict = &prediction.verdict;
    let named = [&verdict.least_memory, &verdict.fewest_faults, &verdict.most_memory];
    let (setting, _) = &prediction.rows[place];
    place == 0
        || named.into_iter().flatten().any(|gain| gain.place == place)
        || ASKED.contains(&setting.name.as_str())
}

fn median(range: Range) -> Option<f64> {
    Some(range.median)
}

/// The peak of anonymous memory of all processes under each setting, with what was measured.
fn peaks(rows: &[(Setting, Row)], validations: &[Validation]) -> Picture {
    let measured = |setting: &Setting| {
        let validation = validations.iter().find(|validation| validation.setting == setting.name)?;
        let figure = validation.figures.iter().find(|figure| figure.name == "peak_anonymous")?;
        median(figure.measured)
    };
    let names: &[&str] = if validations.is_empty() { &["predicted"] } else { &["predicted", "measured"] };
    let needed = rows.first().map_or(0.0, |(_, present)| present.peak_charge.max);
    Picture {
        name: "peak-memory".to_owned(),
        title: "The most anonymous memory of all processes together".to_owned(),
        explanation: format!(
            "For each setting of large pages, the highest private memory of all processes at one moment (peak \
             anonymous memory). The first row is the setting that the host has now. With shared memory, page \
             tables and what else the kernel keeps the machine must have {} there, and room for the files that are \
             read.",
            Unit::Bytes.text(needed)
        ),
        columns: columns("setting", names, &Unit::Bytes),
        rows: rows
            .iter()
            .map(|(setting, figures)| {
                let numbers = [median(figures.peak_anonymous), measured(setting)];
                row(&shown(setting), numbers.into_iter().take(names.len()))
            })
            .collect(),
        drawing: Drawing::Bars { bars: names.len(), each_its_own: false, unit_column: None },
    }
}

/// Major faults over the limit: the curve, each limit with each kind of swap, and what was measured.
fn major_faults(prediction: &Prediction, limited: Option<&LimitValidation>) -> Option<Picture> {
    let limits = &prediction.limits;
    let best = limits.curve.first().map(|(setting, _)| setting.swap)?;
    let measured = limited.and_then(|found| {
        let figure = found.figures.iter().find(|figure| figure.name == "major_faults")?;
        Some((found.setting, figure.measured.median))
    });
    let is_tried = |swap: &LimitSwap| limits.rows.iter().any(|(setting, _)| setting.swap == *swap);
    let swaps: Vec<LimitSwap> = LimitSwap::ALL.into_iter().filter(is_tried).collect();
    // A row a limit in bytes: the curve, then a column a kind of swap, then what was measured.
    let mut by_limit: BTreeMap<u64, Vec<Option<f64>>> = BTreeMap::new();
    let width = 1 + swaps.len() + usize::from(measured.is_some());
    let mut put = |setting: &LimitSetting, column: usize, value: Option<f64>| {
        by_limit.entry(setting.bytes).or_insert_with(|| vec![None; width])[column] = value;
    };
    for (setting, row) in &limits.curve {
        put(setting, 0, row.figures.map(|figures| figures.major_faults.median));
    }
    for (setting, row) in &limits.rows {
        let column = swaps.iter().position(|swap| *swap == setting.swap).map_or(1, |place| place + 1);
        put(setting, column, row.figures.map(|figures| figures.major_faults.median));
    }
    if let Some((setting, value)) = measured {
        put(&setting, width - 1, Some(value));
    }
    let mut columns = vec![
        Column::new("memory limit", Unit::Bytes),
        Column::new(format!("predicted curve, {}", best.name()), Unit::Count),
    ];
    let predicted = swaps.iter().map(|swap| Column::new(format!("predicted, {}", swap.name()), Unit::Count));
    columns.extend(predicted);
    let mut marks = vec![Mark::Line];
    marks.extend(swaps.iter().map(|_| Mark::Points));
    if let Some((setting, _)) = measured {
        columns.push(Column::new(format!("measured, {}", setting.swap.name()), Unit::Count));
        marks.push(Mark::Measured);
    }
    let rows = by_limit.into_iter().map(|(bytes, numbers)| {
        let limit = std::iter::once(Cell::Number(bytes as f64));
        limit.chain(numbers.into_iter().map(Cell::from)).collect()
    });
    Some(Picture {
        name: "major-faults-over-memory".to_owned(),
        title: "What less memory costs".to_owned(),
        explanation: "How often the program has to wait for a page to come back from swap (major page faults) when it may \
                      have only so much memory. Where the line is low and flat, memory can be taken away; where it rises \
                      steeply, the program crawls."
            .to_owned(),
        columns,
        rows: rows.collect(),
        drawing: Drawing::Lines { axis: "major page faults".to_owned(), marks },
    })
}

/// Predicted beside measured, of each figure.
fn measured(validations: &[Validation], limited: Option<&LimitValidation>) -> Option<Picture> {
    let settings = validations.iter().map(|found| (found.setting.clone(), &found.figures));
    let all = settings.chain(limited.map(|found| (found.setting.name(), &found.figures)));
    let rows: Vec<Vec<Cell>> = all
        .flat_map(|(setting, figures)| {
            figures.iter().map(move |figure| {
                vec![
                    Cell::Text(figure.name.replace('_', " ")),
                    Cell::Text(setting.clone()),
                    Cell::Number(figure.predicted.median),
                    Cell::Number(figure.measured.median),
                    Cell::Text(figure.unit.to_owned()),
                ]
            })
        })
        .collect();
    (!rows.is_empty()).then(|| Picture {
        name: "predicted-and-measured".to_owned(),
        title: "How good the prediction is".to_owned(),
        explanation: "The program was run on this host under these settings: what was predicted, and what it then needed. \
                      Each pair of bars has a scale of its own."
            .to_owned(),
        columns: vec![
            Column::new("figure", Unit::Text),
            Column::new("setting", Unit::Text),
            Column::new("predicted", Unit::Count),
            Column::new("measured", Unit::Count),
            Column::new("unit", Unit::Text),
        ],
        rows,
        drawing: Drawing::Bars { bars: 2, each_its_own: true, unit_column: Some(4) },
    })
}
