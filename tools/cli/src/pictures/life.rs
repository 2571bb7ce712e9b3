//! Memory over the recorded time, and how long page faults take.

use super::{columns, row};
use quire_advise::{Latency, faults_by_size};
use quire_measure::Costs;
use quire_replay::{LifeFigures, LifeSample};
use quire_report::{Cell, Column, Drawing, Mark, Picture, Unit};
use std::collections::BTreeMap;

/// Points of a line.
const POINTS: usize = 120;

/// One line: its name, its samples, and how it is drawn.
pub(super) type Line<'l> = (String, &'l [LifeSample], Mark);

/// Anonymous memory and page tables over time, a line each.
pub(super) fn over_time(lines: &[Line<'_>]) -> [Picture; 2] {
    let ends = lines.iter().filter_map(|(_, samples, _)| Some(samples.last()?.time_ns));
    let end = ends.max().unwrap_or(0).max(1);
    let picture = |name: &str, title: &str, explanation: &str, axis: &str, of: fn(&LifeSample) -> u64| {
        let series: Vec<Vec<f64>> = lines.iter().map(|(_, samples, _)| resampled(samples, end, of)).collect();
        let at = |place: usize| Cell::Number(end as f64 / 1e9 * place as f64 / POINTS as f64);
        let numbers = lines.iter().map(|(name, ..)| Column::new(name.clone(), Unit::Bytes));
        Picture {
            name: name.to_owned(),
            title: title.to_owned(),
            explanation: explanation.to_owned(),
            columns: std::iter::once(Column::new("recorded time", Unit::Seconds)).chain(numbers).collect(),
            rows: (0..=POINTS)
                .map(|place| {
                    let values = series.iter().map(|series| Cell::Number(series[place]));
                    std::iter::once(at(place)).chain(values).collect()
                })
                .collect(),
            drawing: Drawing::Lines {
                axis: axis.to_owned(),
                marks: lines.iter().map(|&(.., mark)| mark).collect(),
            },
        }
    };
    [
        picture(
            "memory-over-time",
            "Memory in use over time",
            "Private memory of all processes that was in RAM (anonymous memory, each page counted once) while the program \
             ran, as the replay had it. Each point is the most since the point before.",
            "in memory",
            |sample| sample.anonymous,
        ),
        picture(
            "page-tables-over-time",
            "Page tables over time",
            "What the kernel itself needed to keep track of that memory: it comes on top. Large pages need less of it.",
            "page tables",
            |sample| sample.page_tables,
        ),
    ]
}

/// The most in each stretch of time that ends at a point; where there was no sample, what was there before.
fn resampled(samples: &[LifeSample], end: u64, of: fn(&LifeSample) -> u64) -> Vec<f64> {
    let place = |sample: &LifeSample| {
        (u128::from(sample.time_ns) * POINTS as u128).div_ceil(u128::from(end)).min(POINTS as u128) as usize
    };
    let mut values: Vec<Option<u64>> = vec![None; POINTS + 1];
    let mut last = vec![None; POINTS + 1];
    for sample in samples {
        let value = of(sample);
        let place = place(sample);
        values[place] = values[place].max(Some(value));
        last[place] = Some(value);
    }
    let mut before = 0;
    let each = values.iter().zip(last).map(|(most, last)| {
        let value = most.unwrap_or(before);
        before = last.unwrap_or(before);
        value as f64
    });
    each.collect()
}

/// A row of faults under one setting: its name, and faults by the size in bytes of what they mapped.
pub(super) type FaultRow = (String, BTreeMap<u64, f64>);

/// How many page faults there are of each size.
pub(super) fn counts_of(life: &LifeFigures) -> BTreeMap<u64, f64> {
    faults_by_size(life).into_iter().map(|(size, count)| (size, count as f64)).collect()
}

/// Estimates of how long page faults take on this host, if it was calibrated; else how many there are.
pub(super) fn latency(faults: &[FaultRow], costs: Option<&Costs>) -> Picture {
    let found: Vec<(&str, Option<Latency>)> = faults
        .iter()
        .map(|(name, by_size)| (name.as_str(), costs.and_then(|costs| Latency::of(by_size, costs))))
        .collect();
    let total = |(_, by_size): &FaultRow| Some(by_size.values().sum::<f64>());
    if found.iter().all(|(_, latency)| latency.is_none()) {
        return Picture {
            name: "page-faults".to_owned(),
            title: "Page faults".to_owned(),
            explanation: "How often the program had to wait for the kernel to give it memory that it touched for the first \
                          time. How long that takes is not known here: run quire calibrate on this host first, and this \
                          picture shows it."
                .to_owned(),
            columns: columns("setting", &["page faults"], &Unit::Count),
            rows: faults.iter().map(|faults| row(&faults.0, [total(faults)])).collect(),
            drawing: Drawing::Bars { bars: 1, each_its_own: false, unit_column: None },
        };
    }
    let names = ["half take at most", "9 in 10", "99 in 100", "999 in 1000"];
    Picture {
        name: "fault-latency".to_owned(),
        title: "How long a page fault takes (estimates)".to_owned(),
        explanation: "When the program touches memory for the first time it waits until the kernel has given it a page; a \
                      large page takes longer, but there are fewer waits. Estimates, not measurements of the program: \
                      each page fault of the replay is given the time that quire calibrate measured on this host for its \
                      size."
            .to_owned(),
        columns: columns("setting", &names, &Unit::Nanoseconds),
        rows: found
            .iter()
            .map(|(name, latency)| {
                let quantiles = |of: fn(&Latency) -> f64| latency.as_ref().map(of);
                row(name, [quantiles(|l| l.p50), quantiles(|l| l.p90), quantiles(|l| l.p99), quantiles(|l| l.p999)])
            })
            .collect(),
        drawing: Drawing::Quantiles,
    }
}

/// Memory that was never touched, by mapping.
pub(super) fn waste(name: &str, of: &str, wastes: &[(String, f64)]) -> Picture {
    Picture {
        name: name.to_owned(),
        title: format!("Memory that is never used, {of}"),
        explanation: "Where most memory lies that the kernel gave to the program as a part of large pages and that the \
                      program never touched, at the moment of its highest use. It is named as /proc/PID/maps names it."
            .to_owned(),
        columns: columns("mapping", &["never touched"], &Unit::Bytes),
        rows: wastes.iter().map(|(mapping, bytes)| row(mapping, [Some(*bytes)])).collect(),
        drawing: Drawing::Bars { bars: 1, each_its_own: false, unit_column: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_peak_and_goes_on_where_it_was() {
        let sample = |time_ns, anonymous| LifeSample { time_ns, anonymous, ..LifeSample::default() };
        let samples = [sample(0, 1), sample(10, 90), sample(11, 5), sample(1200, 7)];
        let line = resampled(&samples, 1200, |sample| sample.anonymous);
        assert_eq!((line.len(), line[0], line[1], line[2], line[POINTS]), (POINTS + 1, 1.0, 90.0, 5.0, 7.0));
        assert_eq!(line[3], 5.0);
    }
}
