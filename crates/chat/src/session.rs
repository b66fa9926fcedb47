//! A conversation with a server: the client, the key, the model and the log. Must not know the source of lines.

use headrace_client::{
    ChatRequest, Client, ClientConfig, ClientError, ConversationLog, HeadraceOptions, ModelInfo,
    StreamOptions,
};
use headrace_server_access::local_server::LocalServer;
use headrace_server_access::{ReachedServer, reach};

use super::waterfall::ClientHalf;
use crate::arguments::ChatArgs;

/// One conversation.
pub(super) struct ChatSession {
    pub(super) client: Client,
    /// The client's configuration, without a lent key.
    config: ClientConfig,
    /// The server that lent the key. `None` if the key was given.
    pub(super) lender: Option<LocalServer>,
    pub(super) has_key: bool,
    pub(super) log: ConversationLog,
    pub(super) model: String,
    /// The fields that all requests share.
    pub(super) template: ChatRequest,
    /// The request that `/trace` shows.
    pub(super) last_request: Option<String>,
    /// The client's timings of that request.
    pub(super) last_half: Option<ClientHalf>,
    /// The question that `/retry` repeats, and whether its turn is in the conversation.
    pub(super) last_question: Option<(String, bool)>,
}

impl ChatSession {
    pub(super) async fn open(args: &ChatArgs) -> Result<Self, ClientError> {
        let ReachedServer { config, lender } = reach(&args.caller).await?;
        let client = Client::new(config.clone())?;
        let model = match &args.model {
            Some(model) => model.clone(),
            None => first_model(&client).await?,
        };
        let mut log = ConversationLog::new();
        log.set_system(args.system.clone().unwrap_or_default());
        let template = ChatRequest {
            max_tokens: args.max_tokens,
            temperature: args.temperature,
            seed: args.seed,
            stream: true,
            stream_options: Some(StreamOptions { include_usage: true }),
            headrace: Some(HeadraceOptions { explain: true }),
            ..ChatRequest::default()
        };
        let has_key = config.key.is_some();
        let (last_request, last_half, last_question) = (None, None, None);
        Ok(Self {
            client,
            config,
            lender,
            has_key,
            log,
            model,
            template,
            last_request,
            last_half,
            last_question,
        })
    }

    /// Replaces an expired lent key. Returns whether there is a new one.
    pub(super) async fn renew(&mut self) -> bool {
        let Some(lender) = &self.lender else { return false };
        let Some(lender) = lender.again().await else { return false };
        let config = ClientConfig { key: Some(lender.key.clone()), ..self.config.clone() };
        let Ok(client) = Client::new(config) else { return false };
        (self.client, self.lender) = (client, Some(lender));
        true
    }
}

async fn first_model(client: &Client) -> Result<String, ClientError> {
    let models = client.models().await?;
    let first = models.into_iter().find(ModelInfo::takes_conversations).map(|model| model.id);
    first.ok_or_else(|| {
        ClientError::Config(
            "the server lists no model that takes conversations for this key; name one by --model".to_owned(),
        )
    })
}
