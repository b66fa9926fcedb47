// Distinguishes typing from keyboard commands.

/** Whether an element takes text. */
export function isTyping(node) {
  return node.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(node.tagName);
}
