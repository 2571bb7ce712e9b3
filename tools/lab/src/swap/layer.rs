//! The same as the table, without a device: the cost of the swap layer itself for each page.
//!
//! Pages are not zeros, which their first word shows, and the device keeps nothing: a write completes at
//! once, and a read leaves the frame as it is. So pages do not come back with their contents, which are not
//! checked.

use super::TIME_RATIO;
use super::scale::Scale;
use super::stage::{Contents, Patterns, Stage};
use super::table::Sweep;
use crate::error::LabError;
use crate::folios::{Folios, pages};
use crate::report::{Figure, Metric, Report, Section};
use crate::rounds::{Series, in_turn};
use quire_arch::{PAGE_SIZE, Platform};
use quire_frame::Frames;
use quire_mm::{DeviceFlags, PageIo, Submitted, SwapDevice};
use quire_swap::SwapTechnique;

const SIZES: [Folios; 2] = [Folios::PAGES, Folios::PMD];

const CPU: Metric = Metric::lower("cpu_median", "ns/page");
const CPU_MIN: Metric = Metric::lower("cpu_min", "ns/page");

/// A device that keeps nothing.
struct Nothing {
    slots: u64,
}

impl<P: Platform> SwapDevice<P> for Nothing {
    fn kind(&self) -> &'static str {
        "nothing"
    }

    fn slots(&self) -> u64 {
        self.slots
    }

    fn flags(&self) -> DeviceFlags {
        DeviceFlags::SYNCHRONOUS
    }

    fn submit(&self, _frames: &Frames<P>, _io: PageIo) -> Submitted {
        Submitted::Done(Ok(()))
    }
}

/// One strategy's rounds: out and in, on the CPU.
struct Subject<'s> {
    technique: SwapTechnique,
    sweep: Sweep<'s>,
    series: [Series; 2],
}

impl Subject<'_> {
    fn round(&mut self, counts: bool) -> Result<(), LabError> {
        self.sweep.fill(0)?;
        let [_, out] = self.sweep.out(0)?;
        let [_, back] = self.sweep.back(0)?;
        self.sweep.give_up(0)?;
        if counts {
            self.series.iter_mut().zip([out, back]).for_each(|(series, time)| series.add(time));
        }
        Ok(())
    }
}

pub(super) fn steps() -> u64 {
    SIZES.len() as u64
}

pub(super) fn run(
    scale: &Scale,
    report: &mut Report<SwapTechnique>,
    step: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let mut figures = Vec::new();
    for folios in SIZES {
        let name = format!("{} MiB, {folios}", scale.window >> 20);
        step(&name);
        run_case(&name, folios, scale, report, &mut figures)?;
    }
    let title = "The layer alone: pages that are not zeros, and a device that keeps nothing".to_owned();
    report.sections.push(Section { title, figures });
    Ok(())
}

fn run_case(
    name: &str,
    folios: Folios,
    scale: &Scale,
    report: &mut Report<SwapTechnique>,
    figures: &mut Vec<Figure<SwapTechnique>>,
) -> Result<(), LabError> {
    let patterns = Patterns::of(Contents::Numbers);
    let bytes = scale.window;
    let memory = bytes + bytes / PAGE_SIZE * 32;
    let stages = SwapTechnique::ALL
        .into_iter()
        .map(|technique| Stage::new(technique, (memory, 1), folios, |_| Ok(Nothing { slots: pages(bytes) })))
        .collect::<Result<Vec<_>, _>>()?;
    let spaces = stages.iter().map(|stage| stage.program(bytes, None)).collect::<Result<Vec<_>, _>>()?;
    let mut subjects: Vec<_> = stages
        .iter()
        .zip(&spaces)
        .map(|(stage, space)| Subject {
            technique: stage.technique,
            sweep: Sweep::new(stage, space, &patterns, bytes),
            series: Default::default(),
        })
        .collect();
    in_turn(&mut subjects, 1 + scale.rounds, |subject, number| subject.round(number > 0))?;
    let of = |technique| subjects.iter().find(|subject| subject.technique == technique);
    for (nth, way) in ["out", "in"].into_iter().enumerate() {
        let name = format!("swap-{way} without a device, {name}");
        let mut add = |metric, value: &dyn Fn(&Series) -> f64| {
            figures.push(Figure::new(&name, metric, |technique| {
                of(technique).map(|subject| value(&subject.series[nth]))
            }));
        };
        add(CPU_MIN, &Series::min);
        add(CPU, &Series::median);
        let base = of(SwapTechnique::Bypass);
        figures.push(Figure::new(&name, TIME_RATIO, |technique| {
            Some(of(technique)?.series[nth].ratio_to(&base?.series[nth]))
        }));
    }
    drop(subjects);
    for (stage, space) in stages.iter().zip(spaces) {
        stage.run(|| drop(space));
    }
    let found = stages.into_iter().flat_map(Stage::end);
    report.findings.extend(found.map(|finding| format!("{name} without a device, {finding}")));
    Ok(())
}
