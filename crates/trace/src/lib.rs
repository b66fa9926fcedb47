//! Trace records of finished calls: recording, storage interfaces, drawings for people and metrics for Prometheus.
//! Knows no HTTP, no SQL and no engine: stores implement [`TraceStore`] and [`TraceReader`].

mod axis;
mod beside;
mod cache;
mod call;
mod codec;
mod content;
mod context;
mod engine_facts;
mod error;
mod exposition;
mod family;
mod gauges;
mod group;
mod histogram;
mod intern;
mod json;
mod labels;
mod live;
mod margin;
mod memory;
mod metrics;
mod misses;
mod moderation_filter;
mod names;
mod now;
mod output_verdicts;
mod past;
mod price_terms;
mod recent;
mod record_queues;
mod recorded;
mod recorder;
mod rounds;
mod sampling;
mod seam;
mod search;
mod shadows;
mod statement;
mod table;
mod units;
mod usage;
mod usage_fleet;
mod waterfall;
mod window;

pub use beside::{ConcurrentCall, MAX_BESIDE, WorkerStay, beside};
pub use cache::{CacheBy, CacheQuery, CacheReport, MAX_CACHE_CALLS};
pub use call::{CallEndKind, CallRow};
pub use codec::{decode_record, encode_record};
pub use content::archive::ContentArchive;
pub use content::dataset::{CallDataset, MAX_DATASET_ITEMS, MAX_DATASETS};
pub use content::query::{ContentPage, ContentQuery, MAX_CONTENTS_EXAMINED};
pub use content::recorder::{ContentRecorder, ContentRecorderConfig};
pub use content::redaction::ContentRedactor;
pub use content::score::{CallScore, RecordName, ScoreValue};
pub use content::seam::ContentStore;
pub use content::stored::{AnswerPart, AnswerPartKind, StoredContent};
pub use context::TraceContext;
pub use error::TraceError;
pub use exposition::PageFormat;
pub use family::{Exemplar, FamilyKind, HistogramBuckets, MetricFamily, MetricSample, SampleValue};
pub use json::{answer_json, operator_json, record_json};
pub use live::{EVENTS_WAITING, LiveCalls, LiveNote};
pub use margin::{MarginBy, MarginReport};
pub use memory::MemoryTraces;
pub use metrics::{Metrics, MetricsConfig};
pub use misses::miss_words;
pub use moderation_filter::ModerationFilter;
pub use names::{MAX_NAMED, other_names, trace_name};
pub use now::{CallNow, EngineNow, LiveView, MAX_CALLS_NAMED};
pub use recorded::SharedRecord;
pub use recorder::{RecorderConfig, TraceRecorder};
pub use rounds::round_lines;
pub use seam::{RecordObserver, TraceReader, TraceStore, UsageReader, WritePace};
pub use search::{CallCursor, CallPage, CallQuery, MAX_CALLS_PER_PAGE, NoCursor, fixed_moment, moment};
pub use shadows::{ShadowExample, ShadowPair, shadow_pairs};
pub use statement::{Month, MonthStatement, StatementLine};
pub use table::{slowest_table, table};
pub use units::{
    cells, clipped, counted, grouped, humane_duration, percent, plain, three_digits, utc_date, utc_midnight,
    utc_time, wrapped,
};
pub use usage::{
    HOUR_NS, MAX_USAGE_ROWS, UsageBy, UsageInterval, UsageQuery, UsageReport, UsageRow, UsageSums,
};
pub use waterfall::{WaterfallOptions, waterfall};
pub use window::{MinuteStats, Percentiles};
