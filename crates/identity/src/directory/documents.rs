//! Numbered documents, such as invoices, with their rows of the audit log.

use super::Directory;
use crate::{DocumentWriter, IdentityError, NewDocument, NumberedDocument};

impl Directory {
    /// Gives a document the next number of its series. It never changes afterwards.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails, or has a document of the same kind, organisation and period.
    pub fn number_document(
        &self,
        new: &NewDocument,
        write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, IdentityError> {
        let _one_change = self.waiting.lock();
        Ok(self.store.number_document(new, write)?)
    }

    /// Returns all documents, by series and number.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails, or a document was changed.
    pub fn documents(&self) -> Result<Vec<NumberedDocument>, IdentityError> {
        Ok(self.store.documents()?)
    }

    /// Returns a document. `None` if there is none with this number.
    ///
    /// # Errors
    /// [`IdentityError::Store`] if the store fails, or the document was changed.
    pub fn document(&self, series: &str, number: u64) -> Result<Option<NumberedDocument>, IdentityError> {
        Ok(self.store.document(series, number)?)
    }
}
