//! What `config check` says of upstreams: it asks them. Must not know a server that runs.

use std::sync::Arc;

use headrace_domain::SystemClock;

use crate::config::Config;
use crate::output;
use crate::upstreams::{Upstreams, asked};
use crate::wordbooks::Wordbooks;

/// Asks the upstreams of a configuration what they serve, and says what they answered and what follows from it. What is wrong with one
/// keeps no server from starting.
pub(crate) fn look(config: &Config, books: Wordbooks) {
    let beyond = config.storage.beyond_the_disk(&config.files, &config.data_dir);
    beyond.iter().for_each(|note| output::note(&format!("warning: {note}")));
    if config.upstreams.is_empty() {
        return;
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let upstreams = Upstreams::new(Arc::new(SystemClock::new()), None);
    runtime.block_on(upstreams.look_up(config));
    match upstreams.sites_of(config) {
        Err(faults) => faults.iter().for_each(|fault| output::note(&format!("warning: {fault}"))),
        Ok(sites) => {
            let sites = runtime.block_on(asked(sites));
            let rows = sites.iter().map(|site| site.describe().to_vec()).collect();
            output::say(&output::table(&["upstream", "kind", "at", "serves"], rows));
            let fronted = upstreams.fronted(config, books, sites);
            let rows = fronted.models.iter().map(|model| {
                let window = model.lane.context_window();
                vec![
                    model.name.to_string(),
                    window.map_or_else(|| "–".to_owned(), |window| format!("{window} tokens")),
                ]
            });
            output::say(&format!("\n{}\n", output::table(&["sent on as", "context"], rows.collect())));
            fronted.notes.iter().for_each(|note| output::note(&format!("warning: {note}")));
        }
    }
}
