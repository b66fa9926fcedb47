// Whether somebody types, so that a letter is a letter and no command.

/** Whether what a key was pressed in takes text. */
export function isTyping(node) {
  return node.isContentEditable || ['INPUT', 'TEXTAREA', 'SELECT'].includes(node.tagName);
}
