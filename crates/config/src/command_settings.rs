//! The settings of a command that works on the data directory of a server. Must not know the command.

use std::path::Path;

use crate::variables::of_process;
use crate::{ConfigError, ServerSettings, layered};

impl ServerSettings {
    /// Reads the settings of a command: the defaults, a file, the environment, and the option `--data-dir`.
    ///
    /// # Errors
    /// Returns every fault.
    pub fn of_command(file: Option<&Path>, data_dir: Option<&str>) -> Result<Self, ConfigError> {
        let mut settings = layered(file, of_process());
        if let Some(dir) = data_dir {
            settings.flag("data_dir", "--data-dir", dir);
        }
        Self::from_settings(settings, true)
    }
}
