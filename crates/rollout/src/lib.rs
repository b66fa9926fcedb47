//! How calls are divided among models, and how new models are tried: routes that draw a model for a call, canaries
//! that are watched, and shadow copies. Knows no stage, no worker and no price list.

mod canary;
mod routes;
mod shadows;

pub use canary::{
    CallCanaries, CallVerdict, CanaryNews, CanaryRollback, CanarySpec, CanaryView, CanaryWatch, RouteCanaries,
};
pub use routes::{FallbackModels, ModelRoute, RouteArm, RouteAsker, RouteDraw, StickyBy};
pub use shadows::{
    CopyCall, CopyRunner, RunningCopy, SHADOW_KEY, SampledCall, ShadowBudget, ShadowCopies, ShadowCopy,
    ShadowFigures, ShadowQueue, ShadowRole, ShadowSample, ShadowSpec, ShadowSpend, ShadowSpending,
    ShadowSpent, run_copies,
};
