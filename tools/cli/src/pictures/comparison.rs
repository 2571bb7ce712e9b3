//! What `quire compare --report` draws.

use super::{life, provenance};
use crate::output::techniques;
use quire_advise::{Comparison, Effect};
use quire_output::Shown;
use quire_report::{Cell, Column, Drawing, Mark, Picture, Section, Unit};

/// The section of a comparison.
pub(crate) fn comparison(comparison: &Comparison) -> Section {
    let report = &comparison.report;
    let differences = report.processes.iter().map(|process| process.mismatches).sum();
    let mut provenance = provenance(&report.header, report.lost, differences);
    provenance.insert(1, ("Recording".to_owned(), Shown::new(&comparison.file).to_string()));
    let mut pictures = vec![bars(&comparison.effects)];
    if let Some(life) = &report.life {
        let name = "all techniques on".to_owned();
        pictures.extend(life::over_time(&[(name, &life.samples, Mark::Line)]));
    }
    Section {
        title: format!("{}: {}", Shown::new(&comparison.file), comparison.command),
        verdict: comparison.effects.iter().map(sentence).collect(),
        pictures,
        provenance,
        objects: techniques::objects(comparison),
    }
}

/// What a technique does, in a sentence.
fn sentence(effect: &Effect) -> String {
    let Effect { technique, setting, .. } = effect;
    if let Some(why) = effect.nothing {
        return format!("{technique} does nothing for this program under {setting}: {why}.");
    }
    let told = effect.figures.iter().filter(|figure| figure.before != figure.after);
    let told: Vec<String> = told
        .map(|figure| format!("{} {}", figure.name, techniques::gain(figure)).trim().to_owned())
        .collect();
    format!("{technique}, {} under {setting}: {}.", techniques::about(technique), told.join(", "))
}

fn bars(effects: &[Effect]) -> Picture {
    let mut rows = Vec::new();
    for effect in effects.iter().filter(|effect| effect.nothing.is_none()) {
        for figure in effect.figures.iter().filter(|figure| figure.before + figure.after > 0.0) {
            rows.push(vec![
                Cell::Text(format!("{}: {}", effect.technique, figure.name)),
                Cell::Text(effect.setting.clone()),
                Cell::Number(figure.before),
                Cell::Number(figure.after),
                Cell::Text(figure.unit.to_owned()),
            ]);
        }
    }
    Picture {
        name: "techniques".to_owned(),
        title: "What each technique saves".to_owned(),
        explanation: "The same recorded program with a technique of memory management switched off and on: how much of \
                      some work there was, for each setting of large pages. Shorter is better. Each pair of bars has a \
                      scale of its own."
            .to_owned(),
        columns: vec![
            Column::new("technique and figure", Unit::Text),
            Column::new("setting", Unit::Text),
            Column::new("technique off", Unit::Count),
            Column::new("technique on", Unit::Count),
            Column::new("unit", Unit::Text),
        ],
        rows,
        drawing: Drawing::Bars { bars: 2, each_its_own: true, unit_column: Some(4) },
    }
}
