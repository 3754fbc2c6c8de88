//! Turns one event into one line, in klog's text form or as a JSON object.

use std::fmt::{self, Write as _};
use std::marker::PhantomData;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::Format;
use super::output::Output;

/// The layer that writes lines.
pub(super) struct Lines<S> {
    format: Format,
    spans: bool,
    output: Output,
    process: u32,
    subscriber: PhantomData<fn(S)>,
}

impl<S> Lines<S> {
    pub(super) fn new(format: Format, spans: bool, output: Output) -> Self {
        Self { format, spans, output, process: std::process::id(), subscriber: PhantomData }
    }
}

/// The fields of an event or span, in order; the message apart.
#[derive(Clone, Default)]
struct Fields {
    message: String,
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.values.push((field.name(), value.into()));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.add(field, text);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines<S> {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id).filter(|_| self.spans) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().into_iter().rev() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.values.extend(of_span.values.iter().cloned());
            }
        }
        event.record(&mut fields);
        let line = match self.format {
            Format::Text => text(event.metadata(), self.process, &fields),
            Format::Json => json(event.metadata(), fields),
        };
        self.output.write(*event.metadata().level() == Level::ERROR, line.as_bytes());
    }
}

/// `file.rs:line`, without the folders in front.
fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or("unknown").rsplit('/').next().unwrap_or_default();
    format!("{file}:{}", metadata.line().unwrap_or(0))
}

fn text(metadata: &Metadata<'_>, process: u32, fields: &Fields) -> String {
    let severity = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let now = Timestamp::now().to_zoned(TimeZone::system());
    let time = now.strftime("%m%d %H:%M:%S.%6f");
    // Quoting keeps a hostile field (a newline in a pod's name) from making lines of its own.
    let mut line = format!("{severity}{time} {process:7} {}] {:?}", caller(metadata), fields.message);
    for (name, value) in &fields.values {
        // Writing to a String does not fail.
        let _ = match value {
            Value::String(text) => write!(line, " {name}={text:?}"),
            other => write!(line, " {name}={other}"),
        };
    }
    line.push('\n');
    line
}

fn json(metadata: &Metadata<'_>, fields: Fields) -> String {
    let verbosity = match *metadata.level() {
        Level::TRACE => 5,
        Level::DEBUG => 1,
        _ => 0,
    };
    let micros = Timestamp::now().as_microsecond();
    let mut object = Map::new();
    #[expect(clippy::cast_precision_loss, reason = "microseconds since 1970 fit the 53 bits of a double until 2255")]
    object.insert("ts".to_owned(), Value::from(micros as f64 / 1000.0));
    object.insert("level".to_owned(), Value::from(metadata.level().as_str().to_lowercase()));
    object.insert("caller".to_owned(), Value::from(caller(metadata)));
    object.insert("msg".to_owned(), Value::from(fields.message));
    object.insert("v".to_owned(), Value::from(verbosity));
    for (name, value) in fields.values {
        object.insert(name.to_owned(), value);
    }
    let mut line = Value::Object(object).to_string();
    line.push('\n');
    line
}
