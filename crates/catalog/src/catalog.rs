//! Everything that may change while calls run: models, names, prices, workers, rules, shares. A catalogue is
//! immutable. A reload replaces it as a whole, and each call keeps the catalogue that it was routed by. Knows no call
//! and no file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use headrace_domain::{Code, ModelName, OrgId, Region, Residency, Stage, UnixNanos};
use headrace_fleet::Fleet;
use headrace_ledger::prices::{CostList, PriceList};
use headrace_limits::LimitSpec;
use headrace_moderation::Judge;
use headrace_rollout::{
    CallCanaries, CanaryView, CanaryWatch, FallbackModels, ModelRoute, RouteArm, RouteAsker, RouteCanaries,
    RouteDraw, ShadowSpec,
};

use crate::backend::Backend;
use crate::names::{ModelStatus, NameRules, name_faults};
use crate::notices::RetirementNotice;
use crate::policy::ModelPolicy;

/// The most successors that are followed for one name.
const MOST_MOVES: usize = 8;

/// A served model.
#[derive(Clone)]
pub struct ServedModel {
    /// The name it is served under.
    pub name: ModelName,
    /// How the model is addressed.
    pub backend: Backend,
    /// Creation time in seconds since 1970. Shown as `created`.
    pub created_unix_s: u64,
    /// Answer length in tokens if the caller sets none. `None` means the gateway's default.
    pub default_max_tokens: Option<u32>,
    /// Limits over all callers together.
    pub limits: LimitSpec,
    /// The operator's choices for this model's calls.
    pub policy: ModelPolicy,
}

/// The parts of a catalogue.
pub struct CatalogOffer {
    /// The served models.
    pub models: Vec<Arc<ServedModel>>,
    /// Further names, and the routes behind them.
    pub aliases: BTreeMap<ModelName, ModelRoute>,
    /// Prices of tokens.
    pub prices: PriceList,
    /// What upstreams charge for their tokens.
    pub costs: CostList,
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// Content rules. `None` disables the stage `moderate`.
    pub judge: Option<Arc<dyn Judge>>,
    /// Weights of organisations at an engine. An organisation that is not listed has weight 1.
    pub weights: BTreeMap<OrgId, u32>,
    /// Rules for names: shadows, notices, and whether answers name the model.
    pub names: NameRules,
}

/// The models, names, prices, workers and rules in force.
pub struct Catalog {
    models: HashMap<ModelName, Arc<ServedModel>>,
    aliases: BTreeMap<ModelName, ModelRoute>,
    prices: PriceList,
    costs: CostList,
    fleet: Arc<Fleet>,
    judge: Option<Arc<dyn Judge>>,
    weights: BTreeMap<OrgId, u32>,
    rules: NameRules,
    /// Canary watches by route.
    trials: BTreeMap<ModelName, RouteCanaries>,
    /// The body must be inspected before it is parsed, because it decides which model takes the call or how it is
    /// read. True if a model has a message backend or a name leads to several models.
    looks: bool,
    /// Some model is free, so an empty balance is no reason to reject a caller early.
    free_model: bool,
}

impl Catalog {
    /// Checks an offer and builds the catalogue. Every served model needs workers and a price, and every alias a
    /// model.
    ///
    /// # Errors
    /// All faults at once.
    pub fn checked(offer: CatalogOffer, now: UnixNanos) -> Result<Arc<Self>, GatewayError> {
        let CatalogOffer { models: offered, aliases, prices, costs, fleet, judge, weights, names: rules } =
            offer;
        let mut faults = Vec::new();
        let mut free_model = false;
        let mut models = HashMap::new();
        for model in offered {
            match prices.quote(&model.name, now) {
                None => faults.push(format!(
                    "model `{}` has no price: nothing is free by accident; set one under [[prices]]",
                    model.name
                )),
                Some(quote) => {
                    free_model |= quote.hold_for(None, 1000, 1000).is_ok_and(|most| most.get() == 0)
                        || prices.is_free_for_some(&model.name, now)
                }
            }
            if !fleet.serves(&model.name) {
                faults.push(format!("model `{}` has no worker", model.name));
            }
            if let Some(twice) = models.insert(model.name.clone(), model) {
                faults.push(format!("model `{}` is served twice under one name", twice.name));
            }
        }
        let status = |name: &ModelName| match models.contains_key(name) {
            true => ModelStatus::Served,
            false => ModelStatus::Unknown,
        };
        faults.extend(name_faults(&status, &aliases, &rules).into_iter().map(|fault| fault.why));
        if !faults.is_empty() {
            return Err(GatewayError { faults });
        }
        let looks = models.values().any(|model: &Arc<ServedModel>| model.backend.is_messages())
            || aliases.values().any(ModelRoute::has_choice);
        let trials = aliases.iter().filter_map(|(name, route)| Some((name.clone(), trials(name, route)?)));
        let trials = trials.collect();
        Ok(Arc::new(Self {
            models,
            aliases,
            prices,
            costs,
            fleet,
            judge,
            weights,
            rules,
            trials,
            looks,
            free_model,
        }))
    }

    /// The served models, in no order.
    pub fn models(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.models.values()
    }

    /// The further names, in order.
    pub fn aliases(&self) -> impl Iterator<Item = &ModelName> {
        self.aliases.keys()
    }

    /// The workers.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// All names with the models that they lead to. A name with several models leads to its main one.
    pub fn names(&self) -> impl Iterator<Item = (&ModelName, &Arc<ServedModel>)> {
        let aliases = self.aliases.iter();
        let aliases = aliases.filter_map(|(alias, route)| Some((alias, self.models.get(route.main()?)?)));
        self.models.iter().chain(aliases)
    }

    /// The model served under a name or alias. If the name has several models, the main one.
    pub fn resolve(&self, name: &ModelName) -> Option<&Arc<ServedModel>> {
        match self.aliases.get(name) {
            Some(route) => self.models.get(route.main()?),
            None => self.models.get(name),
        }
    }

    /// Whether the model is served by another provider's server, judged by its backend.
    pub fn is_far(&self, name: &ModelName) -> bool {
        self.models.get(name).is_some_and(|model| model.backend.is_messages())
    }

    /// Whether a body must be inspected before it is parsed.
    pub const fn looks(&self) -> bool {
        self.looks
    }

    /// Whether a model behind `name` is offered within the call's residency.
    pub fn offers_within(&self, name: &ModelName, residency: &Residency) -> bool {
        self.models_of(name).any(|model| self.fleet.serves_within(model, residency))
    }

    /// The regions in which the models behind `name` are offered. `None` represents workers without a configured
    /// region.
    pub fn regions_of(&self, name: &ModelName) -> BTreeSet<Option<Region>> {
        self.models_of(name).flat_map(|model| self.fleet.regions_of(model)).collect()
    }

    /// The models that may take calls for `name`.
    fn models_of<'a>(&'a self, name: &'a ModelName) -> impl Iterator<Item = &'a ModelName> {
        let route = self.aliases.get(name);
        let arms = route.into_iter().flat_map(ModelRoute::open).map(|arm| &arm.model);
        arms.chain(route.is_none().then_some(name))
    }

    /// Chooses the model for a call with this body that asks for `name`, or for the successor that `name` has moved
    /// to. Prefers models that are offered within the call's residency.
    pub fn choose(&self, name: &ModelName, asker: &RouteAsker, body: &[u8]) -> Option<Arc<ServedModel>> {
        let name = self.current(name, asker.now);
        let model = match self.aliases.get(name) {
            Some(route) if route.has_choice() => {
                let draw = RouteDraw::new(name, route, asker, body);
                let trials = self.trials.get(name);
                let stays = |arm: &RouteArm| !trials.is_some_and(|trials| trials.is_out(&arm.model));
                let within = |arm: &RouteArm| self.fleet.serves_within(&arm.model, &asker.principal.regions);
                &route
                    .choose(&draw, |arm| stays(arm) && within(arm))
                    .or_else(|| route.choose(&draw, stays))?
                    .model
            }
            Some(route) => route.main()?,
            None => name,
        };
        self.models.get(self.current(model, asker.now)).map(Arc::clone)
    }

    /// Follows the successors of names that have moved on.
    fn current<'a>(&'a self, name: &'a ModelName, now: UnixNanos) -> &'a ModelName {
        let next = |name: &&'a ModelName| self.rules.notices.get(*name)?.moved(now);
        std::iter::successors(Some(name), next).take(MOST_MOVES).last().unwrap_or(name)
    }

    /// The notice for the name asked for, or else for the model that it leads to.
    pub fn notice<'a>(
        &'a self,
        asked: &'a ModelName,
        model: &'a ModelName,
    ) -> Option<(&'a ModelName, &'a RetirementNotice)> {
        let notices = &self.rules.notices;
        let named = |name| notices.get(name).map(|notice| (name, notice));
        named(asked).or_else(|| named(model))
    }

    /// Whether any name has a notice of retirement.
    pub fn has_notices(&self) -> bool {
        !self.rules.notices.is_empty()
    }

    /// Whether answers name the model that an alias led to.
    pub fn shows_aliases(&self) -> bool {
        self.rules.show_aliases
    }

    /// The model that answers instead of `failed` if calls for `asked` end with this code at this stage. Skips models
    /// that were tried and those outside the call's residency. The route's fallbacks come first. If the failure was
    /// the model's own, the other models of the route come next.
    pub fn fallback(
        &self,
        asked: &str,
        (code, stage): (Code, Stage),
        failed: &ServedModel,
        tried: &[ModelName],
        residency: &Residency,
    ) -> Option<Arc<ServedModel>> {
        let asked = ModelName::new(asked).ok()?;
        let route = self.aliases.get(&asked)?;
        let trials = self.trials.get(&asked);
        let stays = |arm: &&RouteArm| !trials.is_some_and(|trials| trials.is_out(&arm.model));
        let arms = route.open().filter(|_| FallbackModels::is_of_the_model(code, stage)).filter(stays);
        let others = route.fallbacks.after(code, stage).chain(arms.map(|arm| &arm.model));
        let mut others = others.filter(|name| **name != failed.name && !tried.contains(name));
        others.find_map(|name| {
            self.models.get(name).filter(|_| self.fleet.serves_within(name, residency)).map(Arc::clone)
        })
    }

    /// Whether a call for `asked` that was parsed for `model` may fall back to a model with a message backend.
    pub fn may_fall_back_on_messages(&self, asked: &ModelName, model: &ServedModel) -> bool {
        let is_messages =
            |name: &ModelName| self.models.get(name).is_some_and(|model| model.backend.is_messages());
        let route = self.aliases.get(asked).filter(|_| !model.backend.is_messages());
        route.is_some_and(|route| route.models().any(is_messages))
    }

    /// The canary watches that a call for `asked` counts towards when `model` serves it.
    pub fn canaries_of(&self, asked: &ModelName, model: &ModelName) -> Option<Box<CallCanaries>> {
        self.trials.get(asked)?.call(model)
    }

    /// Continues the canary watches of the catalogue before this one, if their entries are the same.
    pub fn continue_watches_of(&self, former: &Self) {
        for (name, trials) in &self.trials {
            if let Some(former) = former.trials.get(name) {
                trials.continue_from(former);
            }
        }
    }

    /// All canary watches.
    pub fn watches(&self) -> impl Iterator<Item = &Arc<CanaryWatch>> {
        self.trials.values().flat_map(RouteCanaries::watches)
    }

    /// The names that lead to several models, with their routes.
    pub fn routes(&self) -> impl Iterator<Item = (&ModelName, &ModelRoute)> {
        self.aliases.iter().filter(|(_, route)| route.has_choice())
    }

    /// The figures of a canary.
    pub fn canary(&self, route: &ModelName, model: &ModelName) -> Option<CanaryView> {
        let watch = self.trials.get(route)?.watches().find(|watch| watch.model == *model)?;
        Some(watch.view())
    }

    /// How calls for `asked` that `model` serves are copied. A rule for the name asked for takes precedence.
    pub fn shadow<'a>(
        &'a self,
        asked: &'a ModelName,
        model: &'a ModelName,
    ) -> Option<(&'a ModelName, &'a Arc<ShadowSpec>)> {
        let shadows = &self.rules.shadows;
        let named = |name| shadows.get(name).map(|spec| (name, spec));
        named(asked).or_else(|| named(model))
    }

    /// The names whose calls are copied, with their rules.
    pub fn shadows(&self) -> impl Iterator<Item = (&ModelName, &ShadowSpec)> {
        self.rules.shadows.iter().map(|(name, spec)| (name, &**spec))
    }

    /// Whether any calls are copied.
    pub fn has_shadows(&self) -> bool {
        !self.rules.shadows.is_empty()
    }

    /// Prices of tokens.
    pub fn prices(&self) -> &PriceList {
        &self.prices
    }

    /// What upstreams charge for their tokens.
    pub fn costs(&self) -> &CostList {
        &self.costs
    }

    /// The content rules, if there are any.
    pub fn judge(&self) -> Option<&Arc<dyn Judge>> {
        self.judge.as_ref()
    }

    /// An organisation's weight at an engine.
    pub fn weight(&self, org: &OrgId) -> u32 {
        self.weights.get(org).copied().unwrap_or(1)
    }

    /// Whether some model is free.
    pub fn has_free_model(&self) -> bool {
        self.free_model
    }
}

/// The canary watches of a route.
fn trials(name: &ModelName, route: &ModelRoute) -> Option<RouteCanaries> {
    let watch = |arm: &RouteArm| Some(CanaryWatch::new(name, &arm.model, arm.weight, arm.canary?));
    RouteCanaries::of(route.arms.iter().filter_map(watch))
}

/// The faults of a configuration that cannot be served, all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayError {
    /// One line per fault.
    pub faults: Vec<String>,
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.faults.join("; "))
    }
}

impl std::error::Error for GatewayError {}
