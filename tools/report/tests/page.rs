//! A page whose texts are hostile: it stays one page, and its data stay JSON.

use quire_report::{
    Cell, Column, Drawing, HeatCell, HeatDrawing, HeatRun, Mark, Page, Picture, Section, Unit,
};
use serde_json::{Value, json};

const HOSTILE: &str = "</script></title><script>alert(1)</script> \"'&<!-- \u{1b}[31m\u{0}";

fn column(unit: Unit) -> Column {
    Column::new(HOSTILE, unit)
}

fn picture(drawing: Drawing, columns: Vec<Column>, rows: Vec<Vec<Cell>>) -> Picture {
    let (title, explanation) = (HOSTILE.to_owned(), HOSTILE.to_owned());
    Picture { name: "a-name".to_owned(), title, explanation, columns, rows, drawing }
}

/// One picture of each kind.
fn page() -> Page {
    let words = || vec![Cell::Text(HOSTILE.to_owned()), Cell::Number(3.0), Cell::None, Cell::Number(0.0)];
    let named = || vec![column(Unit::Text), column(Unit::Bytes), column(Unit::Bytes), column(Unit::Bytes)];
    let numbers = |x: f64| vec![Cell::Number(x), Cell::Number(x * 7.0), Cell::None, Cell::Number(f64::NAN)];
    let lines =
        Drawing::Lines { axis: HOSTILE.to_owned(), marks: vec![Mark::Line, Mark::Points, Mark::Beside] };
    let cell = HeatCell { touched_before: 0.5, never_touched: 0.5, ..HeatCell::default() };
    let run = HeatRun { name: HOSTILE.to_owned(), rows: vec![vec![cell; 3]; 50] };
    let heat = Drawing::Heat(HeatDrawing { seconds: 1.5, columns: 3, runs: vec![run.clone(), run] });
    let over_numbers =
        vec![column(Unit::Seconds), column(Unit::Count), column(Unit::Count), column(Unit::Count)];
    let pictures = vec![
        picture(lines, over_numbers, vec![numbers(0.0), numbers(1.0)]),
        picture(Drawing::Bars { bars: 3, each_its_own: false, unit_column: None }, named(), vec![words()]),
        picture(Drawing::Quantiles, named(), vec![words()]),
        picture(heat, named(), vec![words()]),
    ];
    let section = Section {
        title: HOSTILE.to_owned(),
        verdict: vec![HOSTILE.to_owned(), format!("  {HOSTILE}")],
        pictures,
        provenance: vec![(HOSTILE.to_owned(), HOSTILE.to_owned())],
        objects: vec![json!({ "text": HOSTILE })],
    };
    Page { title: HOSTILE.to_owned(), sections: vec![section] }
}

#[test]
fn text_stays_text() {
    let page = page();
    let html = page.html();
    assert_eq!(html.matches("<script").count(), 1);
    assert_eq!(html.matches("</script>").count(), 1);
    assert!(!html.contains("<!-- ") && !html.contains('\u{1b}') && !html.contains('\u{0}'));
    assert!(!html.contains("NaN"), "a number that is none is not drawn");
    let (_, data) = html.split_once("id=\"data\">").expect("data");
    let (data, _) = data.split_once("</script>").expect("an end");
    let data: Vec<Value> = serde_json::from_str(data).expect("JSON");
    let objects: Vec<Value> = page.sections[0].all_objects().collect();
    assert_eq!(data, objects);
    assert_eq!(data[0]["text"], HOSTILE);
}

#[test]
fn each_picture_is_drawn_for_wide_and_for_narrow_screens() {
    let html = page().html();
    for (word, count) in [("<figure ", 4), ("class=\"wide\"", 4), ("class=\"narrow\"", 4), ("<details ", 4)] {
        assert_eq!(html.matches(word).count(), count, "{word}");
    }
    // Labels are found by ids, of which each is there once.
    for id in html.split("aria-labelledby=\"").skip(1).flat_map(|rest| rest.split('"').next()) {
        for id in id.split(' ') {
            assert_eq!(html.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
        }
    }
}

/// An empty picture is no reason for an error.
#[test]
fn nothing_is_drawn_of_nothing() {
    let columns = || vec![column(Unit::Text), column(Unit::Count)];
    let nothing = |drawing| picture(drawing, columns(), Vec::new());
    let section = Section {
        pictures: vec![
            nothing(Drawing::Quantiles),
            nothing(Drawing::Bars { bars: 1, each_its_own: true, unit_column: None }),
            nothing(Drawing::Heat(HeatDrawing::default())),
            nothing(Drawing::Lines { axis: String::new(), marks: vec![Mark::Line] }),
        ],
        ..Section::default()
    };
    let html = Page { title: String::new(), sections: vec![section] }.html();
    assert!(!html.contains("NaN") && !html.contains("\"inf"), "{html}");
}
