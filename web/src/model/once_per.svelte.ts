/**
 * Returns a function that creates one object for each owner, when it is first asked for.
 *
 * Values that the object derives live as long as the owner. Otherwise they would end with the component that asked first.
 */
export function oncePer<Owner extends object, Value extends object>(create: (owner: Owner) => Value): (owner: Owner) => Value {
  const values = new WeakMap<Owner, Value>();
  return (owner) => {
    const known = values.get(owner);
    if (known !== undefined) return known;
    $effect.root(() => void values.set(owner, create(owner)));
    return values.get(owner)!;
  };
}
