//! The compared servers: the governed path on a scripted engine, and a bare hello-world on the same sockets.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_call_api::{
    AnswerBody, BodySource, CallAnswer, CallService, RequestAdmission, RequestHead, RequestTarget,
};
use headrace_call_state::Delivery;
use headrace_catalog::{Backend, ModelPolicy, ServedModel, TokenBackend};
use headrace_checkpoint::Checkpoint;
use headrace_domain::{Clock, KeyId, ModelName, SamplingDefaults, SystemClock};
use headrace_engine_api::{Capabilities, ResumeSupport};
use headrace_fleet::Worker;
use headrace_gateway::Gateway;
use headrace_limits::LimitSpec;
use headrace_prompt::{ChatTemplate, ReplyStyle, SpecialTokenTexts, TemplateLimits};
use headrace_sim::ScriptedEngine;
use headrace_tokenizer::Tokenizer;

use crate::gateway_setup::{Failure, listen, open_gateway};
use crate::tally::Tally;

const MODEL: &str = "headrace-demo";
const TOKENS_PER_ANSWER: u32 = 8;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves until standard input closes, then prints a summary of its calls on one line.
pub(crate) fn serve(kind: &str, dir: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    let served = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        if let Some(busy_us) = kind.strip_prefix("hello-") {
            let hello = Hello { key: KeyId::new("hello")?, rounds: rounds_of(busy_us.parse()?) };
            return listen(Arc::new(hello), clock).await;
        }
        let (gateway, tally) = governed(kind, Path::new(dir), Arc::clone(&clock))?;
        listen(gateway, clock).await?;
        println!("{}", tally.line());
        Ok::<_, Failure>(())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead server: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Gives every request the same answer, as long as the governed one, after keeping the processor busy.
struct Hello {
    key: KeyId,
    /// Rounds of [`work`]. Counted as work instead of time, because a core that stutters needs longer for it.
    rounds: u64,
}

/// The number of rounds that take `busy_us` microseconds on an undisturbed core.
fn rounds_of(busy_us: u64) -> u64 {
    const TRIED: u64 = 100_000;
    let time = || {
        let begun = Instant::now();
        work(TRIED);
        begun.elapsed().as_nanos()
    };
    let best_ns = (0..50).map(|_| time()).min().unwrap_or(1).max(1);
    u64::try_from(u128::from(busy_us * 1_000 * TRIED) / best_ns).unwrap_or(0)
}

/// Jumps through a megabyte of memory, as a call accesses its own and shared memory.
fn work(rounds: u64) {
    static MEMORY: [u8; 1 << 20] = [1; 1 << 20];
    let mut at = 1_u64;
    for _ in 0..rounds {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let place = usize::try_from(at >> 44).unwrap_or(0);
        at = at.wrapping_add(u64::from(MEMORY.get(place).copied().unwrap_or(0)));
    }
    std::hint::black_box(at);
}

struct AdmittedKey(KeyId);

impl RequestAdmission for AdmittedKey {
    fn payer(&self) -> &KeyId {
        &self.0
    }
}

impl CallService for Hello {
    type Stream = Delivery;
    type Admission = AdmittedKey;

    fn admit(self: &Arc<Self>, head: RequestHead) -> Result<AdmittedKey, CallAnswer<Delivery>> {
        match head.target {
            RequestTarget::Call(_) | RequestTarget::KeyCheck => Ok(AdmittedKey(self.key.clone())),
            _ => Err(hello()),
        }
    }

    async fn serve<B: BodySource>(
        self: &Arc<Self>,
        _admission: AdmittedKey,
        body: B,
    ) -> CallAnswer<Delivery> {
        // Reads the body as a governed call does, so that the connection can be reused.
        let _ = body.read().await;
        work(self.rounds);
        hello()
    }

    fn not_ready(&self, _model: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    async fn drain(&self, _within: Duration) -> usize {
        0
    }
}

fn hello() -> CallAnswer<Delivery> {
    static BODY: [u8; 2048] = [b'h'; 2048];
    let body = AnswerBody::Whole(Bytes::from_static(&BODY));
    CallAnswer { status: 200, content_type: "text/plain", headers: Vec::new(), body }
}

fn governed(kind: &str, dir: &Path, clock: Arc<dyn Clock>) -> Result<(Arc<Gateway>, Arc<Tally>), Failure> {
    let name = ModelName::new(MODEL)?;
    let engine = ScriptedEngine::new(capabilities(), TOKENS_PER_ANSWER, "word ");
    let worker = Worker::new("scripted", name.clone(), Arc::new(engine));
    open_gateway(kind, dir, clock, served(name)?, worker)
}

fn capabilities() -> Capabilities {
    Capabilities {
        model: MODEL.to_owned(),
        compute_mode: "exact".to_owned(),
        numerics: "scripted".to_owned(),
        vocab: 4096,
        context_window: 2048,
        max_logprobs: 20,
        kv_tokens: 1 << 20,
        continues: ResumeSupport::Never,
        grammars: false,
        thought_caps: false,
        forms: headrace_engine_api::FormKinds::NONE,
        short_context: None,
    }
}

fn served(name: ModelName) -> Result<ServedModel, Failure> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    let checkpoint = Checkpoint::open(&dir)?;
    let tokenizer = Arc::new(Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config())?);
    let texts = SpecialTokenTexts::new(&tokenizer, None, Some("<|im_end|>".to_owned()), None, None);
    let source = checkpoint.chat_template().ok_or("the demo model has a template")?;
    Ok(ServedModel {
        name,
        backend: Backend::Tokens(TokenBackend {
            template: Some(Arc::new(ChatTemplate::compile(source, &texts, TemplateLimits::default())?)),
            replies: ReplyStyle::detect(source),
            grammars: Arc::new(headrace_grammar::FormCompiler::new(Arc::clone(&tokenizer), &[], 4096)),
            tokenizer,
            defaults: SamplingDefaults::default(),
            capabilities: capabilities(),
        }),
        created_unix_s: 0,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        policy: ModelPolicy::default(),
    })
}
