//! The tokenizer assets of a model that a command or an operator names: a model of the configuration, or files by path.
//! Must not know their use.

use std::path::{Path, PathBuf};

use headrace_catalog::ToolsOrder;
use headrace_checkpoint::{Checkpoint, EncoderCheckpoint, Wording};
use headrace_config::ServerSettings;
use headrace_config::relayed::WordsAt;
use headrace_domain::{Clock, ModelName, SystemClock};
use headrace_inspect::{Diagnosis, Examined, Words, diagnose};
use headrace_ledger::prices::{PriceList, Quote};
use headrace_prompt::ReplyFamily;

use crate::model_facts::is_encoder;
use crate::models::demo_files;
use crate::tokenizer_assets::open_wording;

/// A model's tokenizer assets, and its settings.
pub struct FoundModel {
    /// Its name, or the path by which it was named.
    pub name: String,
    /// Its tokenizer, template and sizes.
    pub wording: Wording,
    /// The path of its files. `None` for the model that is built into the program.
    pub path: Option<PathBuf>,
    /// The format of its tool calls. `None` if its template decides.
    pub family: Option<ReplyFamily>,
    /// The order in which tool schemas name properties in its prompts.
    pub tools_order: ToolsOrder,
    /// The current price of its tokens, if one is configured.
    pub quote: Option<Quote>,
}

impl FoundModel {
    /// Finds a model of a configuration.
    ///
    /// # Errors
    /// If there is no model of that name, or only its server has its tokenizer.
    pub fn of_name(config: &ServerSettings, name: &ModelName) -> Result<Self, String> {
        let prices = PriceList::from_config(&config.prices).ok();
        let quote = prices.and_then(|prices| prices.quote(name, SystemClock::new().now()));
        let found = |path: Option<&Path>, family, tools_order| {
            let found = Self::of_files(path, name.as_str())?;
            Ok(Self { family, tools_order, quote: quote.clone(), ..found })
        };
        if let Some(model) = config.models.iter().find(|model| model.name == *name) {
            return found(model.path.as_deref(), model.reply, model.tools_order);
        }
        let relayed = config.relayed.iter().find(|model| model.name == *name);
        let relayed = relayed.ok_or_else(|| format!("no model `{name}`"))?;
        let order = relayed.policy.tools_order;
        match &relayed.words {
            Some(WordsAt::Demo) => found(None, relayed.reply, order),
            Some(WordsAt::Files(path)) => found(Some(path), relayed.reply, order),
            None => Err(format!(
                "`{name}` is asked in messages: only its server has its template and tokenizer. Give `path` beside `targets`, \
                 or name a directory"
            )),
        }
    }

    /// Opens the files at a path. `path` is `None` for the model that is built into the program.
    ///
    /// # Errors
    /// If the files cannot be used.
    pub fn of_files(path: Option<&Path>, name: &str) -> Result<Self, String> {
        let wording = match path {
            None => Wording::from_files(demo_files()).map_err(|error| error.to_string())?,
            Some(path) => open_wording(path).map_err(|refusal| refusal.to_string())?,
        };
        Ok(Self {
            name: name.to_owned(),
            wording,
            path: path.map(Path::to_owned),
            family: None,
            tools_order: ToolsOrder::default(),
            quote: None,
        })
    }

    /// Reads the tokenizer assets for use.
    ///
    /// # Errors
    /// If they do not agree with each other, with the command that says why.
    pub fn words(&self) -> Result<Words, String> {
        let wording = &self.wording;
        let read = Words::read(
            wording.tokenizer_json(),
            wording.tokenizer_config(),
            wording.chat_template(),
            self.family,
        );
        read.map_err(|error| format!("{}: {error}\n  try: headrace doctor {}", self.name, self.name))
    }

    /// Checks whether its files agree with each other.
    pub fn diagnose(&self) -> Diagnosis {
        // Also open the weights. They may be missing, because the model may run elsewhere, and the diagnosis says so.
        if let Some(path) = self.path.as_deref().filter(|path| is_encoder(path)) {
            let refused = EncoderCheckpoint::open(path).err();
            let examined = Examined::of(&self.wording);
            return diagnose(&Examined { refused: refused.as_ref(), is_encoder: true, ..examined });
        }
        let checkpoint = self.path.as_deref().map(Checkpoint::open);
        let (rope, refused) = match &checkpoint {
            Some(Ok(checkpoint)) => (checkpoint.config().rotary.first().map(|rotary| &rotary.rope), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        diagnose(&Examined { family: self.family, rope, refused, ..Examined::of(&self.wording) })
    }
}
