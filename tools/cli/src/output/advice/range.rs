//! A figure in an object: its median, and its range if it has one.

use quire_advise::{Figure, Range};
use serde_json::{Map, Value, json};

/// Adds a figure, and its range if it has one.
pub(super) fn put(object: &mut Map<String, Value>, name: &str, range: Range) {
    object.insert(name.to_owned(), json!(range.median));
    if range.min < range.max {
        object.insert(format!("{name}_range"), json!([range.min, range.max]));
    }
}

/// Adds a figure that is not always known.
pub(super) fn put_known(object: &mut Map<String, Value>, name: &str, range: Option<Range>) {
    match range {
        Some(range) => put(object, name, range),
        None => _ = object.insert(name.to_owned(), Value::Null),
    }
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
