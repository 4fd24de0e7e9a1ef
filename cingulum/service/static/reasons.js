// What Slurm's words for why a job waits mean.
const MEANT = [
  [/^BeginTime$/, "not before a certain time; after it was put back into the queue, two minutes later"],
  [/^Priority$/, "jobs of higher priority go first"],
  [/^Resources$/, "not enough hosts, GPUs, cores or memory are free"],
  [/^Dependency$/, "waits for the jobs that it follows"],
  [/^DependencyNeverSatisfied$/, "a job that it follows has failed"],
  [/^JobHeldUser$/, "held; Release lets it start"],
  [/^JobHeldAdmin$/, "held by an administrator"],
  [/^JobArrayTaskLimit$/, "as many tasks of the array run as may at once"],
  [/^(QOS|Assoc|Max)/, "a limit of your account or quality of service is reached"],
  [/^Partition(Time|Node)Limit$/, "it asks for more than its partition allows"],
  [/^PartitionDown$/, "its partition starts no jobs at present"],
  [/^(ReqNodeNotAvail|NodeDown)/, "hosts that it needs are down or reserved"],
  [/^Licenses$/, "waits for a licence"],
];

// The reason, and what it means where it is one of these.
export function explained(reason) {
  const found = MEANT.find(([word]) => word.test(reason));
  return found ? `${reason}: ${found[1]}` : reason;
}
