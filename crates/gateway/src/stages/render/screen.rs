//! Judges what a relayed body asks for besides tokens, for each server it may be sent to: extras that cost money,
//! addresses that a server would fetch, and work that would leave the caller's regions. Must not know how a body is
//! read.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::{Catalog, ServedModel};
use headrace_domain::{
    Call, Code, ConcernKind, Endpoint, FieldConcern, PriceTier, Prompt, Region, RelayedBody, Residency,
    Stage, UnixNanos,
};
use headrace_engine_api::SharedRelay;
use headrace_ledger::prices::Quote;
use headrace_relay::{GEO, TIER, extras_of_betas, place_of};

/// A call, and the facts by which it is judged.
pub(crate) struct RelayScreen<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) model: &'a ServedModel,
    /// The call as its caller sent it.
    pub(crate) call: &'a Call,
    /// The body that servers receive.
    pub(crate) relayed: &'a RelayedBody,
    pub(crate) regions: &'a Residency,
    /// The headers that go with the body.
    pub(crate) headers: &'a [(&'static str, String)],
    pub(crate) now: UnixNanos,
}

/// The limits of a call that may be sent.
#[derive(Debug)]
pub(crate) struct ScreenClearance {
    /// The upstreams that may receive it.
    pub(crate) upstreams: Box<[Arc<str>]>,
    /// The most web searches that it may be charged for.
    pub(crate) most_searches: u64,
}

impl ScreenClearance {
    /// The body of a call that servers receive. `None` if the call is not relayed.
    pub(crate) fn body(asked: &Call) -> Option<&RelayedBody> {
        match &asked.prompt {
            Prompt::Relayed(relayed) => Some(relayed),
            Prompt::Conversation(_) | Prompt::Raw(_) | Prompt::Encode(_) => None,
        }
    }
}

impl RelayScreen<'_> {
    /// Whether the call asks for anything besides tokens.
    pub(crate) fn is_needed(&self) -> bool {
        !self.relayed.concerns.is_empty() || self.betas().next().is_some()
    }

    /// Finds the servers that may receive the call.
    ///
    /// # Errors
    /// No server may receive it. Names the first field at fault.
    pub(crate) async fn clear(&self) -> Result<ScreenClearance, Rejection> {
        self.stays_within_regions()?;
        let quote = self.catalog.prices().quote(&self.model.name, self.now);
        let mut most_searches = 0_u64;
        let mut unpriced: Vec<(&'static str, String)> = Vec::new();
        for concern in &self.relayed.concerns {
            match self.price_of(concern, quote.as_ref())? {
                ExtraPrice::Known { searches } => most_searches = most_searches.saturating_add(searches),
                ExtraPrice::Unknown { name } => unpriced.push((name, self.place(concern))),
            }
        }
        let has_long = quote.as_ref().is_some_and(Quote::has_long_prompts);
        let dear_betas: Vec<&'static str> = self.betas().filter(|_| !has_long).collect();
        let targets: Vec<&SharedRelay> = self.catalog.fleet().relays(&self.model.name).collect();
        // A header of one dialect is not sent to servers of the other.
        let own = self.call.endpoint.dialect();
        let allows = |relay: &&SharedRelay| {
            let facts = relay.facts();
            let betas = dear_betas.iter().filter(|_| facts.dialect == own);
            let mut names = unpriced.iter().map(|(name, _)| name).chain(betas);
            names.all(|name| facts.allow_unpriced.contains(name))
        };
        let allowing: Vec<&SharedRelay> = targets.iter().copied().filter(allows).collect();
        if allowing.is_empty() {
            let beta = dear_betas.first().map(|name| (*name, "anthropic-beta".to_owned()));
            if let Some((name, place)) = unpriced.into_iter().next().or(beta) {
                return Err(extra_unpriced(name, &place));
            }
        }
        let upstreams = self.may_fetch(&allowing).await?;
        Ok(ScreenClearance { upstreams: upstreams.into(), most_searches })
    }

    /// Those of `targets` that may receive all addresses in the call.
    async fn may_fetch(&self, targets: &[&SharedRelay]) -> Result<Vec<Arc<str>>, Rejection> {
        let found = self.relayed.concerns.iter().filter_map(|concern| match &concern.ask {
            ConcernKind::Url(url) => Some((concern, url.to_string())),
            ConcernKind::Extra { .. } | ConcernKind::WebSearch { .. } => None,
        });
        let (concerns, urls): (Vec<&FieldConcern>, Vec<String>) = found.unzip();
        let (mut upstreams, mut refused) = (Vec::new(), None);
        for relay in targets {
            let screened = if urls.is_empty() { Ok(()) } else { relay.screen(urls.clone()).await };
            match screened {
                Ok(()) => upstreams.push(Arc::clone(&relay.facts().upstream)),
                Err(index) => refused = refused.or(concerns.get(index).copied()),
            }
        }
        match refused.filter(|_| upstreams.is_empty()) {
            Some(concern) => Err(url_not_allowed(&self.place(concern))),
            None => Ok(upstreams),
        }
    }

    /// What a concern costs.
    fn price_of(&self, concern: &FieldConcern, quote: Option<&Quote>) -> Result<ExtraPrice, Rejection> {
        let known = |is_known: bool, name: &'static str| match is_known {
            true => ExtraPrice::Known { searches: 0 },
            false => ExtraPrice::Unknown { name },
        };
        Ok(match &concern.ask {
            ConcernKind::Url(_) => ExtraPrice::Known { searches: 0 },
            ConcernKind::Extra { name, value } if *name == TIER => {
                let named = PriceTier::NAMED.into_iter().find(|tier| value.as_deref() == Some(tier.name()));
                known(named.is_some_and(|tier| quote.is_some_and(|quote| quote.has_tier(tier))), name)
            }
            ConcernKind::Extra { name, value } => {
                known(*name == GEO && value.as_deref() == Some("global"), name)
            }
            ConcernKind::WebSearch { most } => match (quote.is_some_and(Quote::prices_searches), most) {
                (false, _) => ExtraPrice::Unknown { name: "web_search" },
                (true, Some(most)) => ExtraPrice::Known { searches: u64::from(*most) },
                (true, None) => {
                    let place = self.place(concern);
                    let place = place.trim_end_matches(".type");
                    let message = format!(
                        "`{place}.max_uses`: it is required, as each search is paid for. Say how many searches the call may make."
                    );
                    let rejection = Rejection::new(Code::MissingRequiredParameter, message).at(Stage::Render);
                    return Err(rejection.with_param(&format!("{place}.max_uses")));
                }
            },
        })
    }

    /// # Errors
    /// A part of the work would leave the regions to which the caller's calls are pinned.
    fn stays_within_regions(&self) -> Result<(), Rejection> {
        if self.regions.is_anywhere() {
            return Ok(());
        }
        let leaves = |concern: &&FieldConcern| match &concern.ask {
            ConcernKind::Extra { name, value: Some(value) } if *name == GEO => {
                !Region::new(value).is_ok_and(|region| self.regions.allows(Some(&region)))
            }
            _ => concern.leaves_the_server(),
        };
        let Some(concern) = self.relayed.concerns.iter().find(leaves) else { return Ok(()) };
        let place = self.place(concern);
        let message = format!(
            "`{place}`: a part of the work could leave {}, to which calls of this key are pinned. Leave it out. Nothing was charged.",
            self.regions
        );
        Err(Rejection::new(Code::RegionNotAllowed, message).at(Stage::Render).with_param(&place))
    }

    /// The extras that headers ask for.
    fn betas(&self) -> impl Iterator<Item = &'static str> {
        let is_message = self.call.endpoint == Endpoint::Messages;
        let headers = self.headers.iter().filter(move |(name, _)| is_message && *name == "anthropic-beta");
        headers.flat_map(|(_, value)| extras_of_betas(value))
    }

    /// The place of a concern in the caller's request.
    fn place(&self, concern: &FieldConcern) -> String {
        if let (Prompt::Conversation(conversation), ConcernKind::Url(url)) = (&self.call.prompt, &concern.ask)
        {
            let messages = conversation.messages.iter().enumerate();
            let mut parts =
                messages.flat_map(|(at, message)| message.media.iter().map(move |part| (at, part)));
            let is_it = |source: &headrace_domain::MediaSource| matches!(source, headrace_domain::MediaSource::Url(text) if **text == **url);
            if let Some((at, part)) = parts.find(|(_, part)| is_it(&part.source)) {
                return self.call.place(at, part);
            }
        }
        place_of(&self.relayed.body, concern.at)
    }
}

/// What an extra costs.
enum ExtraPrice {
    /// Its price is known, or it is free.
    Known {
        searches: u64,
    },
    Unknown {
        name: &'static str,
    },
}

fn extra_unpriced(name: &str, place: &str) -> Rejection {
    let message = format!(
        "`{place}`: the extra `{name}` has no price here. Leave it out. Operators: set its price under [[prices]], or list it in \
         `allow_unpriced` of the upstream. Nothing was charged."
    );
    Rejection::new(Code::ExtraUnpriced, message).with_param(place)
}

fn url_not_allowed(place: &str) -> Rejection {
    let message = format!(
        "`{place}`: the model's server may not be handed this address. Send the data itself (`data:`). Operators: `urls` of the \
         upstream. Nothing was charged."
    );
    Rejection::new(Code::UrlNotAllowed, message).with_param(place)
}

/// The rejection by one server that may not receive a call, if other servers may.
pub(crate) fn not_cleared() -> Rejection {
    let message =
        "This upstream may not be sent what the call asks for beside tokens (`urls`, `allow_unpriced`).";
    Rejection::new(Code::ExtraUnpriced, message)
}
