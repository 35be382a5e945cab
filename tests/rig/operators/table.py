"""All operators of the rig. Each needs minutes to build, so only those that a test asks for are built."""

from tests.rig.operators.base import Operator
from tests.rig.operators.jobset import JobSet
from tests.rig.operators.kubedl import KubeDL
from tests.rig.operators.kuberay import KubeRay
from tests.rig.operators.kueue import Kueue
from tests.rig.operators.lws import LeaderWorkerSet
from tests.rig.operators.mpi_operator import MpiOperator
from tests.rig.operators.trainer import Trainer
from tests.rig.operators.training_operator import TrainingOperator
from tests.rig.operators.volcano import Volcano

OPERATORS: tuple[type[Operator], ...] = (
    JobSet,
    TrainingOperator,
    Trainer,
    MpiOperator,
    Volcano,
    Kueue,
    LeaderWorkerSet,
    KubeRay,
    KubeDL,
)
